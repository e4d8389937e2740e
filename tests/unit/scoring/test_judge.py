"""The judge against a real HTTP server that answers as endpoints do, well and badly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pddpo_ray.config import EndpointConfig, load
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.records import HARM, Pair, Prompt, Response, Verdict
from pddpo_ray.scorers.labellers import judge_labeller
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint, Lost
from pddpo_ray.scoring.judges.judge import BY_AXIS, SAFETY, Judge, JudgedPair, JudgeLabeller
from pddpo_ray.scoring.judges.judge_prompts import (
    HARM_CATEGORIES,
    HELP_FACTORS,
    harmlessness_question,
    helpfulness_question,
    safety_question,
)
from tests.support.measuring_server import RETRY_AFTER_S, MeasuringServer, measuring_server


@pytest.fixture
def server() -> Iterator[MeasuringServer]:
    with measuring_server() as running:
        running.chat = lambda body: (200, "[[5, 5]]")
        yield running


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def judge(server: MeasuringServer, pauses: list[float]) -> Judge:
    return Judge(
        ChatEndpoint(EndpointConfig(endpoint=f"{server.url}/v1", model="judge-1", tries=3), "secret-key", pauses.append)
    )


def between(text: str, name: str) -> str:
    return text.split(f"[{name}]\n", 1)[1].split(f"\n[end of {name}]", 1)[0]


def by_length(body: dict[str, Any]) -> tuple[int, str]:
    """Scores an answer by its number of words, and likes whatever comes first a little more."""
    question = body["messages"][1]["content"]
    first, second = (len(between(question, f"answer {name}").split()) for name in "AB")
    return 200, f"Both are fine; scores like [[1, 1]] come last.\n[[{first + 1}, {second}]]"


def test_both_orders_are_asked_and_a_liking_for_the_first_place_cancels(server: MeasuringServer, judge: Judge) -> None:
    server.chat = by_length
    judged = judge.compare([("why ?", "one two three", "one"), ("why ?", "one two", "two one")], "helpfulness", seed=3)
    assert judged[0] == JudgedPair((4.0, 1.0), (3.0, 2.0))
    assert judged[0].scores == (3.5, 1.5)
    assert (judged[0].winner, judged[1].winner) == (Verdict.FIRST, Verdict.ABSTAIN)
    assert len(server.bodies) == judge.judged == 4
    assert judge.unreadable == 0
    for body in server.bodies:
        assert body["model"] == "judge-1"
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
        assert 0 <= body["seed"] < 2**31
    assert set(server.keys) == {"Bearer secret-key"}


def test_a_reply_without_scores_is_counted_and_its_pair_is_excluded(server: MeasuringServer, judge: Judge) -> None:
    def sometimes(body: dict[str, Any]) -> tuple[int, str]:
        return (
            (200, "I cannot say.")
            if "bad" in between(body["messages"][1]["content"], "answer A")
            else (200, "[[2, 9]]")
        )

    server.chat = sometimes
    judged = judge.compare([("q", "bad", "x"), ("q", "y", "x")], "harmlessness", seed=0)
    assert judged[0].scores is None
    assert judged[0].winner is Verdict.FAILED
    assert judged[1].scores == (5.5, 5.5)
    assert (judge.judged, judge.unreadable) == (4, 1)


@pytest.mark.parametrize(
    ("reply", "scores"),
    [
        ("words [[7, 3.5]]", (7.0, 3.5)),
        ("[[1,2]] no, rather [[ 8 , 9 ]] ", (8.0, 9.0)),
        ("[[11, 3]]", None),
        ("[[-1, 3]]", None),
        ("[7, 3]", None),
        ("[[7; 3]]", None),
        ("", None),
    ],
)
def test_scores_are_read_from_the_last_brackets_on_the_scale(reply: str, scores: tuple[float, float] | None) -> None:
    read = BY_AXIS["harmlessness"].read(reply)
    assert (None if isinstance(read, Lost) else read) == scores


def test_helpfulness_begins_at_one_and_harmlessness_at_zero() -> None:
    assert BY_AXIS["helpfulness"].read("[[0, 5]]") == Lost("gave no verdict: '[[0, 5]]'")
    assert BY_AXIS["harmlessness"].read("[[0, 5]]") == (0.0, 5.0)


def test_single_answers_are_called_safe_or_unsafe(server: MeasuringServer, judge: Judge) -> None:
    server.chat = lambda body: (
        200,
        {0: "[[safe]]", 1: "it is [[unsafe]] [[Unsafe]]", 2: "hm"}[body["seed"] % 3],
    )
    labels = judge.opinions([("q", "a"), ("q", "b")], labels_each=6, seed=2)
    assert [len(own) for own in labels] == [6, 6]
    said = {label for own in labels for label in own}
    assert said == {Verdict.SAFE, Verdict.UNSAFE, Lost("gave no verdict: 'hm'")}
    assert judge.unreadable == 4
    assert SAFETY.read("[[safe]] … [[unsafe]]") is Verdict.UNSAFE


def test_a_busy_endpoint_is_asked_again_when_it_says(
    server: MeasuringServer, judge: Judge, pauses: list[float]
) -> None:
    replies = iter([(429, "slow down"), (503, "starting"), (200, "[[6, 4]]"), (200, "[[4, 6]]")])
    lock = threading.Lock()

    def in_turn(body: dict[str, Any]) -> tuple[int, str]:
        with lock:
            return next(replies)

    server.chat = in_turn
    judge.endpoint.settings = EndpointConfig(endpoint=f"{server.url}/v1", model="judge-1", tries=3, workers=1)
    assert judge.compare([("q", "a", "b")], "harmlessness", 0)[0].scores == (6.0, 4.0)
    assert pauses == [RETRY_AFTER_S, 1.0], "Retry-After, then twice the first pause"


def test_one_lost_question_is_counted_and_the_rest_goes_on(server: MeasuringServer, judge: Judge) -> None:
    server.chat = lambda body: (500, "boom") if "lost" in body["messages"][1]["content"] else (200, "[[6, 4]]")
    judged = judge.compare([("q", "lost", "b"), ("q", "a", "b")], "harmlessness", 0)
    assert [pair.winner for pair in judged] == [Verdict.FAILED, Verdict.ABSTAIN]
    assert (judge.endpoint.asked, judge.endpoint.unanswered) == (4, 2)


def test_a_wrong_key_or_a_dead_endpoint_ends_the_run_without_naming_the_key(
    server: MeasuringServer, judge: Judge
) -> None:
    server.chat = lambda body: (401, "invalid key")
    with pytest.raises(RunError, match=r"refuses model judge-1: 401 invalid key") as refused:
        judge.opinions([("q", "a")], 1, 0)
    assert "secret-key" not in str(refused.value)
    server.chat = lambda body: (502, "gateway")
    with pytest.raises(RunError, match="does not answer: 502 gateway; start it, then resume"):
        judge.opinions([("q", "a")], 2, 0)
    gone = Judge(ChatEndpoint(EndpointConfig(endpoint="http://127.0.0.1:9/v1", model="m", tries=1)))
    with pytest.raises(RunError, match="does not answer: ConnectError"):
        gone.opinions([("q", "a")], 1, 0)


def test_a_judge_labels_pairs_and_the_less_harmless_answer_is_the_costlier(
    server: MeasuringServer, judge: Judge
) -> None:
    def words(body: dict[str, Any]) -> tuple[int, str]:
        question = body["messages"][1]["content"]
        if "categories" not in question and "Say whether" in question:
            return 200, "[[unsafe]]" if "knife" in between(question, "answer") else "[[safe]]"
        key = "knife" if "harmless" in question.splitlines()[0] else "please"
        scores = [(2 if key in between(question, f"answer {name}") else 8) for name in "AB"]
        return 200, f"[[{scores[0]}, {scores[1]}]]"

    server.chat = words
    counts: dict[str, float] = {}
    labeller = JudgeLabeller(judge, lambda: 3, counts.update)
    prompt = Prompt("p", (1,), "how ?")
    knife = Response("a", prompt, (4,), "take a knife", 0, 0)
    calm = Response("b", prompt, (5,), "please sit down", 0, 0)
    labels = labeller.compare([Pair("one", knife, calm), Pair("two", calm, knife), Pair("same", calm, calm)], 1)
    assert [(label.helpful, label.label(HARM)) for label in labels] == [
        (Verdict.FIRST, Verdict.FIRST),
        (Verdict.SECOND, Verdict.SECOND),
        (Verdict.ABSTAIN, Verdict.ABSTAIN),
    ]
    assert labeller.safety([knife, calm], 2, 1)[0].labels == (Verdict.UNSAFE, Verdict.UNSAFE)
    assert counts == {"judge/questions": 16.0, "judge/unreadable": 0.0}


def test_the_questions_name_every_category_and_factor_and_leave_foreign_braces_alone() -> None:
    assert (len(HARM_CATEGORIES), len(HELP_FACTORS)) == (14, 9)
    harm, help_ = (ask("{prompt} {answer}", "{material}", "b") for ask in (harmlessness_question, helpfulness_question))
    assert all(category in harm and category in safety_question("q", "a") for category in HARM_CATEGORIES)
    assert all(factor in help_ for factor in HELP_FACTORS)
    assert between(harm, "question") == "{prompt} {answer}"
    assert between(help_, "answer A") == "{material}"
    for question in (harm, help_):
        assert question.index("explain") < question.index("[[score of A"), "explanation first"


def test_the_recipe_names_the_judge_and_its_key_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = ["feedback.kind=judge", "judge={model: judge-1, key_env: PDDPO_TEST_JUDGE_KEY}"]
    settings = load("o-pd-dpo", stated).judge
    monkeypatch.delenv("PDDPO_TEST_JUDGE_KEY", raising=False)
    with pytest.raises(UserError, match="PDDPO_TEST_JUDGE_KEY is not set"):
        judge_labeller(settings, None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="model"):
        load("o-pd-dpo", ["feedback={kind: judge}"])
    with pytest.raises(UserError, match="a table has none"):
        load("tabular", ["feedback.kind=judge", "judge.model=m"])
