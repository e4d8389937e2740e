"""A judge behind the endpoint that this project serves: `pddpo serve` with real vLLM, over HTTP, with keys and limits.

Two models answer. `reference` has random weights and says nothing that could be read. `round-1` was trained for some
seconds to end its answers with scores; what it scores has no meaning, but it is read out of a real model's text.

The endpoint is this file's own: its model is one that judges, with a context as long as a judge's question.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.config import EndpointConfig
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.records import HARM, Pair, Verdict
from pddpo_ray.scorers.labellers import EXCLUDED, judge_labeller
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint, Lost
from pddpo_ray.scoring.judges.judge import BY_AXIS, Judge
from pddpo_ray.scoring.judges.judge_prompts import SYSTEM, harmlessness_question, helpfulness_question, safety_question
from pddpo_ray.storage.whole_files import ARTIFACTS
from pddpo_ray.training.models.from_scratch import (
    ScratchSpec,
    TextPair,
    build_model,
    pretrain,
    sequences,
    train_tokenizer,
)
from tests.support.served_process import served
from tests.support.served_run import SAFE, ServedRun, make_run

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.full]

CONTEXT = 1280
"""A question of some 400 tokens, and the 512 that `pddpo evaluate` allows for its answer."""
SPEC = ScratchSpec(vocabulary=640, context=CONTEXT, steps=120, batch=8, learning_rate=6e-3)
TURN = "\nASSISTANT"
RANDOM, TRAINED = "reference", "round-1"
PAIRS = [("which way ?", "left , then on", "right"), ("is it far ?", "no", "not at all , a mile")]


def lessons(count: int) -> list[TextPair]:
    """Questions as a judge gets them, rendered as the endpoint does, each with a reply that can be read."""
    rng = random.Random(0)
    words = [
        "left",
        "right",
        "on",
        "then",
        "far",
        "no",
        "not",
        "a",
        "mile",
        "?",
        ",",
        "way",
        "is",
        "it",
        "which",
        "at",
        "all",
    ]

    def said(most: int) -> str:
        return " ".join(rng.choices(words, k=rng.randint(2, most)))

    found = []
    for place in range(count):
        prompt, first, second = said(6), said(8), said(8)
        if place % 4 == 3:
            question, scores = safety_question(prompt, first), rng.choice(["safe", "unsafe"])
        else:
            ask = helpfulness_question if place % 2 else harmlessness_question
            # low before high, so that a model of this size can know from the last token alone what comes next
            question, scores = ask(prompt, first, second), f"{rng.randint(2, 4)},{rng.randint(5, 9)}"
        found.append((f" {SYSTEM} {question}{TURN}", f" Verdict=[[{scores}]]."))
    return found


@dataclass
class Served:
    url: str
    run: ServedRun

    @property
    def key(self) -> str:
        return (self.run.folder / "serve-key").read_text().strip()

    def new_key(self, name: str, requests_per_minute: float) -> str:
        """A key that is known to the endpoint, which looks for new ones from time to time."""
        command = [sys.executable, "-m", "pddpo_ray", "serve", str(self.run.folder), "--add-key", name]
        limit = ["--requests-per-minute", str(requests_per_minute), "--scope", "inspect"]
        made = subprocess.run([*command, *limit, "--json"], capture_output=True, check=True)
        key: str = json.loads(made.stdout)["key"]
        return key


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("judge")
    texts = lessons(160)
    tokenizer = train_tokenizer(texts, SPEC.vocabulary)
    tokenizer.chat_template = "{{ bos_token }}{% for message in messages %} {{ message['content'] }}{% endfor %}" + TURN
    rows = sequences(texts, tokenizer, CONTEXT)
    models = {100: build_model(SPEC, tokenizer), 101: build_model(SPEC, tokenizer)}
    assert max(map(len, rows)) <= CONTEXT - 512
    pretrain(models[101], rows, SPEC)
    run = make_run(
        folder / "judge", (SAFE,), max_model_len=CONTEXT, model=lambda seed: models[seed].eval(), tokenizer=tokenizer
    )
    try:
        with served(run.folder, folder / "serve.log") as server:
            yield Served(server.url, run)
    finally:
        run.close()


@dataclass
class Recorded(ChatEndpoint):
    """The endpoint's client, which also remembers what went over the wire."""

    settings: EndpointConfig
    key: str
    pauses: list[float] = field(default_factory=list)
    questions: list[tuple[str, str, int]] = field(default_factory=list)
    replies: list[str | Lost] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.settings, self.key, self.pauses.append)

    def ask(self, questions: Sequence[tuple[str, str, int]]) -> list[str | Lost]:
        found = super().ask(questions)
        self.questions += questions
        self.replies += found
        return found


def client(served_at: Served, model: str, key: str | None = None, **options: float) -> Recorded:
    settings = {"endpoint": f"{served_at.url}/v1", "model": model, "max_tokens": 24, "workers": 4, **options}
    return Recorded(EndpointConfig.model_validate(settings), key or served_at.key)


def test_a_trained_model_is_asked_in_both_orders_and_its_scores_are_read(endpoint: Served) -> None:
    asking = client(endpoint, TRAINED)
    judged = Judge(asking).compare(PAIRS * 4, "helpfulness", seed=1)
    assert len(asking.questions) == 2 * len(judged) == 16
    for place, (prompt, first, second) in enumerate(PAIRS * 4):
        asked = [question for _, question, _ in asking.questions[2 * place : 2 * place + 2]]
        assert asked == [helpfulness_question(prompt, first, second), helpfulness_question(prompt, second, first)]
    said = [BY_AXIS["helpfulness"].read(str(reply)) for reply in asking.replies]
    read = [None if isinstance(scores, Lost) else scores for scores in said]
    assert [pair.as_given for pair in judged] == read[::2]
    assert sum(scores is not None for scores in read) >= 6, asking.replies
    assert any(pair.winner in (Verdict.FIRST, Verdict.SECOND) for pair in judged), asking.replies
    again = client(endpoint, TRAINED)
    assert Judge(again).compare(PAIRS * 4, "helpfulness", seed=1) == judged, "a seed repeats the answers"


def test_safety_is_asked_as_often_as_there_are_labels(endpoint: Served) -> None:
    asking = client(endpoint, TRAINED)
    labels = Judge(asking).opinions([("which way ?", "left"), ("is it far ?", "no")], labels_each=8, seed=2)
    assert [len(own) for own in labels] == [8, 8]
    assert {label for own in labels for label in own} & {Verdict.SAFE, Verdict.UNSAFE}, asking.replies


def test_a_model_without_the_form_labels_nothing_and_all_is_counted(
    endpoint: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through the parts of a run with `feedback: judge`: counts in the journal, and the error that stops the round."""
    monkeypatch.setenv("JUDGE_KEY", endpoint.key)
    world = trap_world()
    pairs = [Pair(f"q{x}", world.response(x, 0, f"f{x}"), world.response(x, 1, f"s{x}")) for x in range(2)]
    answers = [world.response(x, 0, f"a{x}") for x in range(2)]
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as journal:
        for _ in journal.rounds(1):
            journal.add_samples("cost", answers)
            journal.add_samples("candidate", [answer for pair in pairs for answer in (pair.first, pair.second)])
            journal.add_pair_questions(pairs)
            settings = EndpointConfig(
                endpoint=f"{endpoint.url}/v1", model=RANDOM, key_env="JUDGE_KEY", max_tokens=24, workers=4
            )
            labeller = judge_labeller(settings, journal)
            controller = FeedbackController({"cost": labeller}, journal, seed=0, source="judge", excluded=EXCLUDED)
            with pytest.raises(RunError, match="6 safety labels for cost are missing from judge"):
                controller.safety(answers, 3, HARM)
            with pytest.raises(RunError, match="2 of 2 pairs for cost have no answer from judge"):
                controller.compare(pairs)
            break
    # six opinions, and two pairs on two axes in both orders; three attempts at all of it
    assert labeller.judge.judged == labeller.judge.unreadable == 3 * (6 + 8)


def test_a_wrong_key_and_an_unknown_model_are_refused_at_once(endpoint: Served) -> None:
    for asking, said in (
        (client(endpoint, TRAINED, key="wrong"), "refuses model round-1: 401"),
        (client(endpoint, "round-9"), "refuses model round-9: 404"),
    ):
        with pytest.raises(RunError, match=said) as refused:
            Judge(asking).compare(PAIRS[:1], "helpfulness", seed=0)
        assert "wrong" not in str(refused.value), "keys appear in no message"
        assert asking.pauses == []


def test_a_busy_endpoint_is_asked_again_and_what_stays_unanswered_is_excluded(endpoint: Served) -> None:
    """A key for one request: the endpoint puts the second question off, twice, and the judge gives it up."""
    key = endpoint.new_key("slow", requests_per_minute=0.01)
    deadline = time.monotonic() + 60
    while httpx.get(f"{endpoint.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code != 200:
        assert time.monotonic() < deadline, "the new key is not known"
        time.sleep(1)
    asking = client(endpoint, TRAINED, key, workers=1, tries=2)
    judge = Judge(asking)
    (judged,) = judge.compare(PAIRS[:1], "helpfulness", seed=3)
    assert [isinstance(reply, Lost) for reply in asking.replies] == [False, True]
    assert (asking.asked, asking.unanswered) == (2, 1)
    assert asking.pauses == [30.0], "as long as the endpoint says, but no longer than half a minute"
    assert (judged.changed_over, judged.winner) == (None, Verdict.FAILED)
    assert judge.unreadable >= 1


def test_an_answer_that_takes_too_long_is_no_answer(endpoint: Served) -> None:
    """Three tries of the first question, and three of something harmless; the second one is not asked."""
    asking = client(endpoint, TRAINED, timeout=0.001, tries=3, workers=1)
    with pytest.raises(RunError, match=r"does not answer: \w+Timeout.*start it, then resume"):
        Judge(asking).compare(PAIRS[:1], "harmlessness", seed=0)
    assert asking.pauses == [0.5, 1.0, 0.5, 1.0]
    assert (asking.asked, asking.unanswered) == (0, 0), "no missing labels: the run ends, and asks again on resume"


@pytest.mark.parametrize(("model", "readable"), [(TRAINED, True), (RANDOM, False)])
def test_evaluate_counts_what_a_judge_says_and_leaves_out_the_rest(
    endpoint: Served, tmp_path: Path, model: str, readable: bool
) -> None:
    questions = tmp_path / "asked.jsonl"
    questions.write_text("".join(json.dumps({"prompt": f"which way is it , {place} ?"}) + "\n" for place in range(6)))
    place = endpoint.run.folder
    command = [sys.executable, "-m", "pddpo_ray", "evaluate", f"a={place}@reference", f"b={place}@policy-1"]
    options = ["--set", str(questions), "--judge", f"{endpoint.url}/v1", "--judge-model", model, "--max-tokens", "8"]
    done = subprocess.run(
        [*command, *options, "--out", str(tmp_path / "out"), "--json"],
        env={**os.environ, "PDDPO_JUDGE_KEY": endpoint.key},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)["sets"]["asked"]["verdicts"]
    assert set(verdicts) == {"judge_helpfulness", "judge_harmlessness"}
    page = (tmp_path / "out" / "evaluation.html").read_text()
    for name, counts in verdicts.items():
        assert counts["counted"] + counts["excluded"] == 6
        if not readable:
            assert counts["counted"] == 0
            assert f"6 verdicts of {name} were left out." in page
    if readable:
        assert sum(counts["counted"] for counts in verdicts.values()) > 0
    assert endpoint.key not in page + done.stderr + (tmp_path / "out" / "memory.jsonl").read_text()
    assert (place / ARTIFACTS).is_dir()
