"""The endpoint as its users meet it: `pddpo serve` in a process of its own, real vLLM, OpenAI's own client.

One endpoint for the whole file; it is its own, as its run gets rounds, releases and altered weights meanwhile.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from scipy.stats import chisquare

from deploy.serving.metrics import NAMES
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.certificates.release_history import Releases
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.catalog import drawn_round
from tests.support.collector import Collector, collector
from tests.support.killed_processes import CORE, GOOD, REPLICA, WAIT, killed_under_clients, processes
from tests.support.served_process import Served, served
from tests.support.served_run import PROMPT, SAFE, UNSAFE, ServedRun, make_run
from tests.support.tiny_language_model import tiny_llama, word_tokenizer

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow]

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "pddpo.json"
CLIENTS = 20
CONVERSATIONS = 200
SECRET = "xylophone-in-the-prompt"


@dataclass
class Endpoint:
    served: Served
    run: ServedRun
    log: Path
    spans: Collector

    @property
    def url(self) -> str:
        return self.served.url

    def key(self, name: str = "serve-key") -> str:
        return (self.run.folder / name).read_text().strip()

    def client(self, key: str | None = None) -> openai.OpenAI:
        """No retries: a request that fails fails the test."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key or self.key(), max_retries=0, timeout=120)

    def admin(self, path: str, **body: Any) -> Any:
        headers = {"authorization": f"Bearer {self.key('serve-admin-key')}"}
        return httpx.post(f"{self.url}/admin/{path}", json=body, headers=headers, timeout=120).raise_for_status().json()

    def wait_for(self, released: int | None, seconds: float = 60) -> None:
        """Until the endpoint has noticed what the journal says."""
        headers = {"authorization": f"Bearer {self.key('serve-admin-key')}"}
        deadline = time.monotonic() + seconds
        while httpx.get(f"{self.url}/admin/releases", headers=headers, timeout=60).json()["released"] != released:
            assert time.monotonic() < deadline, f"round {released} was not taken over"
            time.sleep(0.2)

    def entrance_lines(self) -> list[str]:
        files = Path("/tmp/ray").glob("session_*/logs/serve/*Entrance*.log")
        return [line for path in files if path.is_file() for line in path.read_text().splitlines()]

    def lines_of(self, reply: Any) -> list[dict[str, Any]]:
        """What the entrance wrote of the request that got this reply."""
        name = str(reply.id).rpartition("cmpl-")[2]  # vLLM puts the kind of completion before the id
        lines = [json.loads(line) for line in self.entrance_lines() if name in line]
        return [line for line in lines if line.get("id") == name]

    def said(self, words: str) -> int:
        """How many lines of the entrance have these words."""
        return sum(words in line for line in self.entrance_lines())


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("serving")
    run = make_run(folder / "demo", (SAFE, UNSAFE, SAFE))
    log = folder / "serve.log"
    try:
        with collector() as spans, served(run.folder, log, "--traces", spans.url, "--log-json") as server:
            yield Endpoint(server, run, log, spans)
    finally:
        run.close()


def ask(client: openai.OpenAI, model: str, **options: Any) -> Any:
    return client.completions.create(model=model, prompt=list(PROMPT.token_ids), **{"max_tokens": 4, **options})


def about(reply: Any) -> dict[str, Any]:
    """The `pddpo` field of a reply."""
    found: dict[str, Any] = reply.model_extra["pddpo"]
    return found


def test_models_are_listed_with_what_is_known_of_them(endpoint: Endpoint) -> None:
    models = {entry.id: entry.model_extra["pddpo"] for entry in endpoint.client().models.list()}  # type: ignore[index]
    assert list(models) == ["released", "mixture", "round-1", "round-2", "round-3", "reference"]
    assert (models["released"]["round"], models["round-2"]["release"]) == (3, "unreleased")
    assert endpoint.client().models.retrieve("mixture").id == "mixture"
    assert httpx.get(f"{endpoint.url}/readyz", timeout=60).json() == {"ok": True}


@pytest.mark.parametrize(
    ("model", "round_", "seed"), [("reference", 0, 100), ("round-1", 1, 101), ("released", 3, 103)]
)
def test_an_answer_is_what_transformers_says_with_the_weights_that_are_stated(
    endpoint: Endpoint, model: str, round_: int, seed: int
) -> None:
    reply = ask(endpoint.client(), model, temperature=0, max_tokens=6)
    own = tiny_llama(seed)
    ids = torch.tensor([PROMPT.token_ids])
    greedy = own.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
    assert reply.choices[0].text.split() == word_tokenizer().decode(greedy, skip_special_tokens=True).split()
    facts = about(reply)
    assert (facts["run"], facts["round"], facts["policy_version"]) == ("demo", round_, 2 * round_)
    assert facts["multiplier"] == (None if round_ == 0 else pytest.approx(0.1 * round_))
    assert reply.usage.prompt_tokens == len(PROMPT.token_ids)
    assert reply.usage.completion_tokens <= 6


@pytest.mark.parametrize("answer", [{"max_tokens": 0}, {"max_tokens": 1, "temperature": 0, "seed": 1234}])
def test_the_log_probabilities_of_prompts_are_those_of_transformers(endpoint: Endpoint, answer: dict[str, Any]) -> None:
    """As evaluation harnesses ask: two prompts at once, echoed, without an answer or (lm-eval) with one token."""
    prompts = [list(PROMPT.token_ids), [*PROMPT.token_ids, 9, 10]]
    reply = endpoint.client().completions.create(model="round-1", prompt=prompts, echo=True, logprobs=1, **answer)
    own = tiny_llama(101)
    assert [choice.index for choice in reply.choices] == [0, 1]
    for ids, choice in zip(prompts, reply.choices, strict=True):
        with torch.no_grad():
            scores = own(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = [float(scores[at, token]) for at, token in enumerate(ids[1:])]
        assert choice.logprobs is not None
        scored: Any = choice.logprobs.token_logprobs
        assert scored[0] is None
        assert scored[1 : len(ids)] == pytest.approx(expected, abs=1e-3)


def test_texts_and_messages_are_tokenised_as_the_engine_reads_them(endpoint: Endpoint) -> None:
    headers = {"authorization": f"Bearer {endpoint.key()}"}

    def post(path: str, **body: Any) -> Any:
        return httpx.post(f"{endpoint.url}/{path}", json=body, headers=headers, timeout=60).raise_for_status().json()

    chat = post("tokenize", messages=[{"role": "user", "content": PROMPT.text}])
    assert chat["tokens"] == list(PROMPT.token_ids)
    assert post("tokenize", prompt=PROMPT.text)["tokens"][-3:] == list(PROMPT.token_ids)[-3:]
    assert post("detokenize", tokens=list(PROMPT.token_ids[1:]))["prompt"].split() == PROMPT.text.split()


def test_prometheus_reads_what_the_endpoint_and_its_engine_say(endpoint: Endpoint) -> None:
    ask(endpoint.client(), "released")
    headers = {"authorization": f"Bearer {endpoint.key()}"}
    text = httpx.get(f"{endpoint.url}/metrics", headers=headers, timeout=60).raise_for_status().text
    seen = {one.name: one.value for family in text_string_to_metric_families(text) for one in family.samples}
    assert seen["pddpo_serving_released_round"] >= 1
    assert set(re.findall(r"# TYPE (\w+) ", text)) >= set(NAMES)
    nodes = json.loads(Path("/tmp/ray/prom_metrics_service_discovery.json").read_text())
    ports = [target for node in nodes for target in node["targets"]]
    until(lambda: any("ray_vllm_num_requests_running" in said(target) for target in ports))
    for name in re.findall(r"ray_vllm_\w+", DASHBOARD.read_text()):
        assert any(name in said(target) for target in ports), name


def test_the_engines_span_continues_the_entrances(endpoint: Endpoint) -> None:
    ask(endpoint.client(), "round-2")

    def gate() -> list[dict[str, Any]]:
        mine = [one for one in endpoint.spans.spans if one["service"] == "pddpo-serving"]
        return [one for one in mine if one["attributes"]["pddpo.round"] == 2]

    def inside() -> list[dict[str, Any]]:
        parents = {one["span"] for one in gate()}
        return [one for one in endpoint.spans.spans if one["service"] == "pddpo-engine" and one["parent"] in parents]

    until(lambda: bool(inside()))
    assert inside()[0]["trace"] in {one["trace"] for one in gate()}
    assert inside()[0]["attributes"]["gen_ai.usage.completion_tokens"] == 4
    assert PROMPT.text not in json.dumps(endpoint.spans.spans)


def said(target: str) -> str:
    try:
        return httpx.get(f"http://{target}/metrics", timeout=10).text
    except httpx.HTTPError:
        return ""


def test_a_vocabulary_without_json_is_said_before_anything_is_generated(endpoint: Endpoint) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot write JSON"):
        endpoint.client().chat.completions.create(
            model="released",
            messages=[{"role": "user", "content": "a number"}],
            response_format={"type": "json_object"},
        )


def test_a_chat_goes_through_the_template_and_headers_say_what_the_body_says(endpoint: Endpoint) -> None:
    """Without a template of its own the model gets `<bos>` and the words: the prompt of the test before."""
    messages: Any = [{"role": "user", "content": PROMPT.text}]
    raw = endpoint.client().chat.completions.with_raw_response.create(
        model="round-1", messages=messages, temperature=0, max_tokens=6
    )
    reply = raw.parse()
    assert reply.choices[0].message.content is not None
    assert (
        reply.choices[0].message.content.split()
        == ask(endpoint.client(), "round-1", temperature=0, max_tokens=6).choices[0].text.split()
    )
    for name, value in about(reply).items():
        header = raw.headers[f"x-pddpo-{name.replace('_', '-')}"]
        assert header == str(value)


def test_a_stream_says_the_same_as_the_whole_and_counts_its_tokens(endpoint: Endpoint) -> None:
    messages: Any = [{"role": "user", "content": PROMPT.text}]
    options: dict[str, Any] = {"model": "round-1", "messages": messages, "temperature": 0, "max_tokens": 6}
    client = endpoint.client()
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert {about(chunk)["policy_version"] for chunk in chunks} == {2}
    plain = list(client.chat.completions.create(**options, stream=True))
    assert all(chunk.choices for chunk in plain)


def test_mistakes_get_the_errors_that_the_client_knows(endpoint: Endpoint) -> None:
    client = endpoint.client()
    with pytest.raises(openai.NotFoundError, match="round-9"):
        ask(client, "round-9")
    with pytest.raises(openai.AuthenticationError):
        ask(endpoint.client("wrong"), "released")
    with pytest.raises(openai.BadRequestError, match="guided_regex is not a field"):
        ask(client, "released", extra_body={"guided_regex": "[a-z]+"})
    with pytest.raises(openai.BadRequestError, match="temperature"):
        ask(client, "released", temperature=-1)
    headers = {"authorization": f"Bearer {endpoint.key()}"}
    assert httpx.post(f"{endpoint.url}/admin/rollback", json={}, headers=headers, timeout=60).status_code == 403


def test_a_length_beyond_the_context_is_cut_to_it_and_a_left_stream_is_paid_marked_and_not_rateable(
    endpoint: Endpoint,
) -> None:
    messages: Any = [{"role": "user", "content": PROMPT.text}]
    long: dict[str, Any] = {"model": "round-1", "messages": messages, "max_tokens": 100_000}
    whole = endpoint.client().chat.completions.create(**long)
    assert re.fullmatch(r"max_tokens: \d+ in place of 100000", about(whole)["clamped"])
    with endpoint.client().chat.completions.create(**long, stream=True, extra_body={"ignore_eos": True}) as stream:
        left = next(iter(stream))
        assert left.usage is None
    headers = {"authorization": f"Bearer {endpoint.key()}"}

    def broken_off() -> bool:
        text = httpx.get(f"{endpoint.url}/metrics", headers=headers, timeout=60).text
        return bool(re.search(r"pddpo_serving_cut_off_total\{.*\} [1-9]", text))

    until(broken_off)
    body = {"id": left.id, "verdict": "up"}
    assert httpx.post(f"{endpoint.url}/v1/feedback", json=body, headers=headers, timeout=60).status_code == 404


def test_a_seed_repeats_policy_and_answer(endpoint: Endpoint) -> None:
    client = endpoint.client()
    first, again = (ask(client, "mixture", seed=11) for _ in range(2))
    assert first.choices[0].text == again.choices[0].text
    assert about(first)["round"] == about(again)["round"]


@pytest.mark.full
def test_two_hundred_conversations_are_spread_evenly_and_each_keeps_its_policy(endpoint: Endpoint) -> None:
    client = endpoint.client()

    def converse(number: int) -> tuple[int, int]:
        name = f"conversation {number}"
        one = ask(client, "mixture", max_tokens=1, extra_headers={"x-conversation-id": name})
        other = ask(client, "mixture", max_tokens=1, extra_body={"conversation_id": name})
        assert about(one)["conversation"] == name
        return about(one)["round"], about(other)["round"]

    with ThreadPoolExecutor(CLIENTS) as threads:
        rounds = list(threads.map(converse, range(CONVERSATIONS)))
    assert all(one == other for one, other in rounds)
    secret = endpoint.key("serve-draw-key")
    drawn = [drawn_round(f"conversation {n}", (1, 2, 3), 0, secret) for n in range(CONVERSATIONS)]
    assert [one for one, _ in rounds] == drawn
    counts = Counter(one for one, _ in rounds)
    assert chisquare([counts[k] for k in (1, 2, 3)]).pvalue > 1e-6  # the secret is another one in every run


@pytest.mark.full
def test_release_and_rollback_drop_no_request_of_twenty_clients(endpoint: Endpoint) -> None:
    stop = threading.Event()
    seen: list[int] = []

    def talk(number: int) -> int:
        client, count = endpoint.client(), 0
        while not stop.is_set():
            stream = number % 2 == 0
            reply = ask(client, "released", max_tokens=8, stream=stream)
            last = list(reply)[-1] if stream else reply
            seen.append(about(last)["round"])
            count += 1
        return count

    def wait_for_replies(round_: int) -> None:
        """Twenty more from this round, while everybody goes on talking."""
        deadline, wanted = time.monotonic() + 60, seen.count(round_) + CLIENTS
        while seen.count(round_) < wanted:
            assert time.monotonic() < deadline, f"round {round_} does not answer"
            assert not any(future.done() for future in talking), "a client failed"
            time.sleep(0.05)

    with ThreadPoolExecutor(CLIENTS) as threads:
        talking = [threads.submit(talk, number) for number in range(CLIENTS)]
        try:
            wait_for_replies(3)
            for path, body, expected in (
                ("rollback", {"reason": "a complaint"}, 1),
                ("release", {"round": 3}, 3),
                ("release", {"round": 2, "force": True}, 2),
                ("rollback", {}, 3),
            ):
                assert endpoint.admin(path, **body) == {"released": expected}
                wait_for_replies(expected)
        finally:
            stop.set()
        counts = [future.result() for future in talking]
    assert min(counts) >= 1
    assert set(seen) == {1, 2, 3}


def test_the_endpoint_follows_the_run_and_a_round_without_a_certificate_stays_unreleased(endpoint: Endpoint) -> None:
    endpoint.wait_for(3)
    endpoint.run.add_round(UNSAFE)
    until(lambda: "round-4" in {entry.id for entry in endpoint.client().models.list()})
    assert about(ask(endpoint.client(), "released"))["round"] == 3
    assert about(ask(endpoint.client(), "round-4"))["release"] == "unreleased"
    with pytest.raises(httpx.HTTPStatusError, match="409"):
        endpoint.admin("release", round=4)
    endpoint.run.add_round(SAFE)
    endpoint.wait_for(5)
    facts = about(ask(endpoint.client(), "released"))
    assert (facts["round"], facts["release"], facts["policy_version"]) == (5, "released", 10)
    mixture = endpoint.client().models.retrieve("mixture").model_extra["pddpo"]  # type: ignore[index]
    assert (mixture["rounds"], mixture["whole"]) == ([2, 3, 4, 5], False)


def test_weights_that_were_changed_on_disk_are_not_served_and_nothing_else_suffers(endpoint: Endpoint) -> None:
    """Round 6 is certified and released, but its file is not what the journal says: the endpoint stays with round 5."""
    run, stays = endpoint.run, endpoint.said("the endpoint stays with what it serves")
    original, run.store.write_tensors = run.store.write_tensors, _with_a_scaled_matrix(run)  # type: ignore[method-assign]
    try:
        run.add_round(SAFE)
    finally:
        run.store.write_tensors = original  # type: ignore[method-assign]
    assert Releases(Store(run.journal.engine, "demo")).now().current == 6
    until(lambda: endpoint.said("the endpoint stays with what it serves") > stays)
    assert about(ask(endpoint.client(), "released"))["round"] == 5
    with pytest.raises(openai.NotFoundError):
        ask(endpoint.client(), "round-6")
    run.rollback()
    endpoint.wait_for(5)


def _with_a_scaled_matrix(run: ServedRun) -> Any:
    write = run.store.write_tensors

    def altered(name: str, tensors: dict[str, torch.Tensor], **options: Any) -> tuple[str, str]:
        _, sha256 = write(name, tensors, **options)
        wrong = {key: value * 1.01 if key == "lm_head.weight" else value for key, value in tensors.items()}
        return write(name, wrong, **options)[0], sha256

    return altered


def test_feedback_becomes_a_question_for_annotators(endpoint: Endpoint) -> None:
    reply = ask(endpoint.client(), "round-1", temperature=0)
    headers = {"authorization": f"Bearer {endpoint.key()}"}

    def say(id_: str, verdict: str) -> int:
        body = {"id": id_, "verdict": verdict, "note": "it worried me"}
        return httpx.post(f"{endpoint.url}/v1/feedback", json=body, headers=headers, timeout=60).status_code

    assert [say(reply.id, "down"), say(reply.id, "unsafe"), say("unknown", "up"), say(reply.id, "five stars")] == [
        201,
        200,
        404,
        400,
    ]
    batches = Rounds(Store(endpoint.run.journal.engine, "demo"), Rules()).all()
    assert [(batch.purpose, batch.round, batch.questions) for batch in batches] == [(f"served-{reply.id}", 1, 1)]


def test_a_requests_line_is_json_with_its_numbers_as_fields(endpoint: Endpoint) -> None:
    """As a log collector reads it: the line of this very request, by the id that the client got."""
    reply = ask(endpoint.client(), "round-1")
    until(lambda: bool(endpoint.lines_of(reply)))
    own = endpoint.lines_of(reply)
    assert reply.usage is not None
    assert own[0]["tokens"] == reply.usage.total_tokens
    assert (own[0]["status"], own[0]["round"], own[0]["message"]) == (200, 1, "request")
    assert own[0]["seconds"] > 0
    assert own[0]["levelname"] == "INFO"


def test_prompts_answers_and_keys_are_in_no_log(endpoint: Endpoint) -> None:
    messages: Any = [{"role": "user", "content": SECRET}]
    reply = endpoint.client().chat.completions.create(model="released", messages=messages, max_tokens=2)
    until(lambda: bool(endpoint.lines_of(reply)))
    words = [SECRET.encode(), endpoint.key().encode()]
    logs = [endpoint.log, *Path("/tmp/ray").glob("session_*/logs/serve/*.log")]
    lines = [path.read_bytes() for path in logs if path.is_file()]
    assert any(b'"policy_version": 10' in content for content in lines)
    assert not any(word in content for content in lines for word in words)


def test_a_key_made_on_the_command_line_works_until_it_is_revoked(endpoint: Endpoint) -> None:
    command = [sys.executable, "-m", "pddpo_ray", "serve", str(endpoint.run.folder)]
    made = subprocess.run(
        [*command, "--add-key", "app", "--requests-per-minute", "1", "--json"], capture_output=True, check=True
    )
    client = endpoint.client(json.loads(made.stdout)["key"])
    until(lambda: is_known(client))
    ask(client, "released", max_tokens=1)
    with pytest.raises(openai.RateLimitError, match="too many requests"):
        ask(client, "released", max_tokens=1)
    with pytest.raises(openai.PermissionDeniedError, match="scope chat"):
        ask(client, "reference")
    subprocess.run([*command, "--revoke-key", "app"], check=True)
    until(lambda: not is_known(client))


@pytest.mark.full
def test_a_killed_vllm_is_followed_by_one_that_imports_nothing(endpoint: Endpoint) -> None:
    """Twelve clients who do as `Retry-After` says see no other error; readiness knows it; the replica stays."""
    root = endpoint.served.process.pid
    replica, before = (processes(root, name) for name in (REPLICA, CORE))
    seen = killed_under_clients(endpoint.served, endpoint.key(), list(PROMPT.token_ids), CORE)
    assert set(seen.ends) == {GOOD, WAIT}
    assert 0 < seen.unready_s < 2
    assert processes(root, REPLICA) == replica
    assert not set(processes(root, CORE)) & set(before)
    assert about(ask(endpoint.client(), "round-2"))["policy_version"] == 4


def is_known(client: openai.OpenAI) -> bool:
    try:
        client.models.list()
    except openai.APIStatusError:
        return False
    return True


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)
