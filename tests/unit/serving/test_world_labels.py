"""The label endpoint: labels follow the stated chances, draws can be repeated, and an OpenAI client can ask it."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from fastapi.testclient import TestClient
from scipy.special import expit
from scipy.stats import chi2

from pddpo_lab.worlds.exported_world import prepare_exported
from pddpo_lab.worlds.label_server import create_app
from pddpo_lab.worlds.labels_by_text import LabelsByText
from pddpo_ray.config import EndpointConfig
from pddpo_ray.records import Verdict
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint
from pddpo_ray.scoring.judges.judge import Judge
from pddpo_ray.worlds.text.prepared_world import PreparedTextWorld
from tests.support.exported_text_world import Exported, export_to
from tests.support.ports import free_port

pytestmark = pytest.mark.run

TOKEN = "a token of this test"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_to(tmp_path_factory.mktemp("world") / "w", "--world", "text-world", "--seed", "0", "--pairs", "24")


@pytest.fixture(scope="module")
def prepared(world: Exported) -> PreparedTextWorld:
    return prepare_exported(world.folder)


class Caller:
    def __init__(self, prepared: PreparedTextWorld, seed: int = 0) -> None:
        self.client = TestClient(create_app(LabelsByText(prepared, seed), TOKEN), raise_server_exceptions=False)

    def post(self, path: str, body: Any, token: str | None = TOKEN) -> Any:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return self.client.post(path, json=body, headers=headers)

    def label(self, prompt: str, response: str, **more: int) -> Any:
        reply = self.post("/v1/labels", {"prompt": prompt, "response": response, **more})
        assert reply.status_code == 200, reply.text
        return reply.json()


@pytest.fixture
def caller(prepared: PreparedTextWorld) -> Caller:
    return Caller(prepared)


def asked(prompt: str, answer: str, form: str = "") -> list[dict[str, str]]:
    text = f"[question]\n{prompt}\n[end of question]\n[answer]\n{answer}\n[end of answer]\n{form}"
    return [{"role": "system", "content": "You judge."}, {"role": "user", "content": text}]


@pytest.mark.run
def test_ten_thousand_labels_follow_the_stated_chances(world: Exported, caller: Caller) -> None:
    """40 answers of all costs, 250 labels each, asked for in several ways: chi square per answer and the whole sum."""
    rng = np.random.default_rng(4)
    cells = [(int(x), int(y)) for x, y in zip(rng.integers(24, size=40), rng.integers(216, size=40), strict=True)]
    chances = np.array([expit(world.truth["cost"][x][y]) for x, y in cells])
    counts = np.zeros(40)
    for index, (x, y) in enumerate(cells):
        prompt, answer = world.truth["prompts"][x], world.truth["answers"][y]
        labels = caller.label(prompt, answer, count=200)["labels"]
        labels += [caller.label(prompt, f" {answer}")["label"] for _ in range(10)]
        messages = asked(prompt, answer)
        reply = caller.post("/v1/chat/completions", {"model": "safety", "messages": messages, "n": 40}).json()
        labels += [choice["message"]["content"] for choice in reply["choices"]]
        assert len(labels) == 250
        assert set(labels) <= {"safe", "unsafe"}
        counts[index] = labels.count("unsafe")
    statistic = float((((counts - 250 * chances) ** 2) / (250 * chances * (1 - chances))).sum())
    assert chi2.ppf(1e-4, 40) < statistic < chi2.ppf(1 - 1e-4, 40)
    deviation = (counts.sum() - 250 * chances.sum()) / math.sqrt(250 * (chances * (1 - chances)).sum())
    assert abs(deviation) < 4
    assert chances.min() < 0.2 < 0.6 < chances.max()


def test_pairs_follow_the_stated_chances_and_both_labels_are_independent(world: Exported, caller: Caller) -> None:
    rng, terms = np.random.default_rng(5), []
    for _ in range(10):
        x, first, second = (int(value) for value in (rng.integers(24), *rng.choice(216, 2, replace=False)))
        answers = {"first": world.truth["answers"][first], "second": world.truth["answers"][second]}
        body = {"prompt": world.truth["prompts"][x], **answers, "count": 400}
        labels = caller.post("/v1/pairs", body).json()["labels"]
        better = np.array([label["better"] == "first" for label in labels])
        costlier = np.array([label["costlier"] == "first" for label in labels])
        chances = [expit(world.truth[key][x][first] - world.truth[key][x][second]) for key in ("reward", "cost")]
        both = chances[0] * chances[1]
        for share, chance in ((better, chances[0]), (costlier, chances[1]), (better & costlier, both)):
            terms.append((share.sum() - 400 * chance) ** 2 / (400 * chance * (1 - chance)))
    # the three terms of a pair depend on each other; 30 is their expected sum
    assert 5 < sum(terms) < 75


def test_a_label_follows_from_seed_answer_and_number_alone(world: Exported, prepared: PreparedTextWorld) -> None:
    prompt, answers = world.truth["prompts"][3], world.truth["answers"]
    one, other = Caller(prepared), Caller(prepared)
    expected = one.label(prompt, answers[7], count=50)["labels"]
    other.label(prompt, answers[9], count=5)
    parts = [other.label(prompt, answers[7], count=size) for size in (1, 19, 30)]
    assert [part["draw"] for part in parts] == [0, 1, 20]
    assert [label for part in parts for label in part["labels"]] == expected
    assert other.label(prompt, answers[7], draw=5)["label"] == expected[5]
    assert other.label(prompt, answers[7], count=45, draw=5)["labels"] == expected[5:]
    assert Caller(prepared, 1).label(prompt, answers[7], count=50)["labels"] != expected
    body = {"model": "safety", "messages": asked(prompt, answers[7]), "seed": 5}
    replies = [other.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"] for _ in range(3)]
    assert replies == [expected[5]] * 3


def test_text_outside_the_grammar_has_the_worst_cost_and_an_unknown_prompt_none(
    world: Exported, caller: Caller
) -> None:
    labels = caller.label(world.truth["prompts"][0], "do as you like", count=1000)["labels"]
    chance = expit(world.truth["off_grammar"]["cost"])
    assert abs(labels.count("unsafe") - 1000 * chance) < 4 * math.sqrt(1000 * chance * (1 - chance))
    reply = caller.post("/v1/labels", {"prompt": "how do i fly ?", "response": "so"})
    assert reply.status_code == 400
    assert "no prompt of this world" in reply.json()["error"]["message"]


def test_comparisons_are_answered_with_a_letter(world: Exported, caller: Caller) -> None:
    """The same draws as the pairs' own route."""
    prompt, (first, second) = world.truth["prompts"][1], world.truth["answers"][2:4]
    text = f"[question]{prompt}[end of question] [answer A]{first}[end of answer A] [answer B]{second}[end of answer B]"
    body = {"prompt": prompt, "first": first, "second": second, "count": 30, "draw": 0}
    labels = caller.post("/v1/pairs", body).json()["labels"]
    for model, key, said in (("helpfulness", "better", "first"), ("harmlessness", "costlier", "second")):
        content = [{"type": "text", "text": text}]
        messages = [{"role": "user", "content": content}]
        reply = caller.post("/v1/chat/completions", {"model": model, "messages": messages, "n": 30, "seed": 0}).json()
        letters = [choice["message"]["content"] for choice in reply["choices"]]
        assert letters == ["A" if label[key] == said else "B" for label in labels]
        assert len(set(letters)) == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/labels", {"prompt": "x"}, 400, "response"),
        ("/v1/labels", {"prompt": "x", "response": "y", "count": 0}, 400, "count"),
        ("/v1/labels", {"prompt": "x", "response": "y", "temperature": 1}, 400, "temperature"),
        ("/v1/chat/completions", {"model": "gpt", "messages": asked("a", "b")}, 404, "safety, helpfulness"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "is it safe?"}]}, 400, "[question]"),
        ("/v1/chat/completions", {"messages": asked("a", "b"), "stream": True}, 400, "stream"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, 400, "no text"),
    ],
)
def test_what_cannot_be_labelled_is_said(caller: Caller, path: str, body: Any, status: int, said: str) -> None:
    reply = caller.post(path, body)
    assert reply.status_code == status
    assert said in reply.json()["error"]["message"]


def test_every_route_but_health_wants_the_token(caller: Caller) -> None:
    routes = {(method, route.path) for route in caller.client.app.routes for method in route.methods}  # type: ignore[attr-defined]
    assert len(routes) == 5
    for method, path in routes - {("GET", "/healthz")}:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
            assert caller.client.request(method, path, json={}, headers=headers).status_code == 401, path
    assert caller.client.get("/healthz").json() == {"ok": True}
    assert caller.client.get("/docs").status_code == 404


@pytest.fixture
def served(world: Exported, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address and token of `pddpo world serve` in a process of its own, over the exported folder."""
    port = free_port()
    token = tmp_path / "token"
    command = [sys.executable, "-m", "pddpo_ray", "world", "serve", "--world", str(world.folder)]
    server = subprocess.Popen([*command, "--port", str(port), "--token-file", str(token)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/healthz").raise_for_status()
                break
            except httpx.TransportError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert token.stat().st_mode & 0o777 == 0o600
        yield f"http://127.0.0.1:{port}/v1", token.read_text().strip()
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)
    finally:
        server.kill()
        server.wait()


@pytest.mark.full
@pytest.mark.slow
def test_an_openai_client_and_the_projects_judge_ask_the_real_server(
    world: Exported, prepared: PreparedTextWorld, served: tuple[str, str]
) -> None:
    url, token = served
    prompt, answer = world.truth["prompts"][0], world.truth["answers"][0]
    expected = [verdict.value for verdict in LabelsByText(prepared, 0).safety(prompt, answer, 20)[1]]
    with openai.OpenAI(base_url=url, api_key=token, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["safety", "helpfulness", "harmlessness"]
        reply = client.chat.completions.create(model="safety", messages=asked(prompt, answer), n=20)  # type: ignore[arg-type]
        assert [choice.message.content for choice in reply.choices] == expected
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    endpoint = ChatEndpoint(EndpointConfig(endpoint=url, model="safety"), key=token)
    labels = Judge(endpoint).opinions([(prompt, answer)], 20, seed=1)[0]
    assert set(labels) <= {Verdict.SAFE, Verdict.UNSAFE}
    plain = httpx.post(f"{url}/labels", json={"prompt": prompt, "response": answer, "draw": 3},
                       headers={"authorization": f"Bearer {token}"})  # fmt: skip
    assert plain.json()["label"] == expected[3]
