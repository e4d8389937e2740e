"""A chat endpoint that refuses, chokes, cuts and is down: what is about one question, and what is about the service."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pddpo_ray.config import EndpointConfig, load
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.records import HARM, Pair, Prompt, Response, Verdict
from pddpo_ray.scoring.judges.endpoint import IN_A_ROW, ChatEndpoint, Lost, key_of
from pddpo_ray.scoring.judges.judge import Judge, JudgeLabeller
from tests.support.measuring_server import MeasuringServer, Reply, measuring_server

MARKED = "how to pick the lock"


@pytest.fixture
def server() -> Iterator[MeasuringServer]:
    with measuring_server() as running:
        yield running


def endpoint(server: MeasuringServer, **settings: Any) -> ChatEndpoint:
    config = {"endpoint": f"{server.url}/v1", "model": "referee", "tries": 2, **settings}
    return ChatEndpoint(EndpointConfig.model_validate(config), None, lambda seconds: None)


def asked(server: MeasuringServer, texts: list[str], **settings: Any) -> list[str | Lost]:
    return endpoint(server, **settings).ask([("system", text, 0) for text in texts])


def for_marked(reply: Reply, otherwise: str = "[[safe]]") -> Callable[[dict[str, Any]], Reply]:
    return lambda body: reply if MARKED in body["messages"][-1]["content"] else (200, otherwise)


def completion(message: dict[str, Any], finish: str = "stop") -> Reply:
    return 200, {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish}]}


REFUSALS: list[tuple[Reply, str, bool]] = [
    ((400, "the content filter stopped this request"), "stopped it by a filter: 400", True),
    ((400, "this text is longer than the maximum context length"), "found it too long: 400", True),
    ((413, "payload"), "found it too long: 413", True),
    ((422, "this one text cannot be processed"), "refused it: 422", True),
    ((451, "no"), "stopped it by a filter: 451", True),
    ((403, "your input was flagged"), "did not answer: 403", False),
    ((404, "try another"), "did not answer: 404", False),
    ((500, "the text broke me"), "did not answer: 500", False),
    ((503, "worker died"), "did not answer: 503", False),
    (completion({"content": None}), "gave no content: its thoughts may have taken all of max_tokens, 512", False),
    (completion({"content": " \n"}), "gave no content", False),
    (completion({"content": "[[safe]] at first, bu"}, "length"), "was cut off: its reply ends at max_tokens", False),
    (completion({"content": ""}, "content_filter"), "stopped it by a filter", True),
    (completion({"content": None, "refusal": "I cannot rate this."}), "declined: I cannot rate this.", False),
    ((200, {"error": {"code": 429, "message": "upstream is busy"}}), "did not answer: 429 upstream is busy", False),
    ((200, {"choices": []}), "did not answer: 502", False),
    ((200, b"<html>sign in</html>"), "did not answer: 502 <html>", False),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "reason", "final"), REFUSALS)
@pytest.mark.parametrize("place", [0, 12, 19])
def test_what_fails_about_one_question_is_lost_alone(
    server: MeasuringServer, reply: Reply, reason: str, final: bool, place: int
) -> None:
    server.chat = for_marked(reply)
    texts = ["fine"] * 19
    texts.insert(place, MARKED)
    replies = asked(server, texts)
    lost = replies.pop(place)
    assert replies == ["[[safe]]"] * 19
    assert isinstance(lost, Lost)
    assert lost.reason.startswith(reason)
    assert lost.final is final


@pytest.mark.parametrize(("reply", "reason", "final"), REFUSALS)
def test_questions_that_can_never_be_answered_are_lost_when_they_are_asked_alone(
    server: MeasuringServer, reply: Reply, reason: str, final: bool
) -> None:
    """Whether the service answered before or was never asked: something harmless tells."""
    server.chat = for_marked(reply)
    for before in (["fine"], []):
        one = endpoint(server)
        one.ask([("s", text, 0) for text in before])
        assert all(isinstance(lost, Lost) for lost in one.ask([("s", MARKED, seed) for seed in range(3)]))


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((401, "wrong key"), r"refuses model referee: 401 wrong key$"),
        ((403, "not yours"), r"refuses model referee: 403 not yours$"),
        (
            (404, "no such model"),
            r"refuses model referee: 404 no such model; `endpoint` is its base URL, such as http://HOST/v1$",
        ),
        ((402, "pay first"), r"refuses model referee: 402 pay first$"),
        (
            (400, "no such model"),
            r"refuses model referee: 400 no such model; a field that it does not know .*`fields: ",
        ),
        ((429, "quota"), r"does not answer: 429 quota; start it, then resume$"),
        ((500, "down"), r"does not answer: 500 down; start it"),
        ((200, b"<html>"), r"does not answer: 502 <html>"),
    ],
)
def test_what_fails_about_the_service_ends_everything_in_one_line(
    server: MeasuringServer, reply: Reply, message: str
) -> None:
    server.chat = lambda body: reply
    with pytest.raises(RunError, match=message):
        asked(server, ["fine"] * 300)
    assert len(server.bodies) <= 2 * 8 * 6, "the rest is not asked"
    server.chat = lambda body: (200, "[[safe]]")
    one = endpoint(server)
    one.ask([("s", "fine", 0)])
    server.chat = lambda body: reply
    with pytest.raises(RunError, match=message):
        one.ask([("s", "fine", 0)] * 300)
    assert len(server.bodies) < 300


def test_nobody_there_is_told_apart_from_a_text_also_in_the_midst_of_a_run(server: MeasuringServer) -> None:
    one = endpoint(server)
    assert one.ask([("s", "fine", 0)]) == ["[[yes]]"]
    server.close()
    with pytest.raises(RunError, match=r"does not answer: Connect\w+: .*; start it, then resume"):
        one.ask([("s", "fine", 0)])


def test_many_refused_texts_in_a_row_are_no_dead_service(server: MeasuringServer) -> None:
    server.chat = for_marked((400, "filter"))
    replies = asked(server, ["fine", *[MARKED] * (3 * IN_A_ROW)], workers=2)
    assert sum(isinstance(reply, Lost) for reply in replies) == 3 * IN_A_ROW


# --- request fields ---------------------------------------------------------------------------------------------


def only(*known: str) -> Callable[[dict[str, Any]], Reply]:
    """A server that refuses every field but these, by its name."""

    def chat(body: dict[str, Any]) -> Reply:
        unknown = [name for name in body if name not in ("model", "messages", *known)]
        return (400, f"Unsupported parameter: '{unknown[0]}'") if unknown else (200, "[[safe]]")

    return chat


@pytest.mark.parametrize(
    "known",
    [
        ("max_completion_tokens", "temperature", "seed"),
        ("max_tokens", "seed"),
        ("max_tokens", "temperature"),
        ("max_completion_tokens",),
    ],
)
def test_a_field_that_is_refused_is_renamed_or_left_out_and_it_is_said_once(
    server: MeasuringServer, known: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    server.chat = only(*known)
    one = endpoint(server)
    with caplog.at_level(logging.WARNING):
        assert one.ask([("s", f"text {n}", n) for n in range(40)]) == ["[[safe]]"] * 40
    told = [record.message for record in caplog.records if "they are named otherwise or left out" in record.message]
    assert told
    if "max_completion_tokens" in known:
        assert "'max_tokens': 'max_completion_tokens'" in told[0]
    before = len(server.bodies)
    assert one.ask([("s", "once more", 0)]) == ["[[safe]]"]
    assert len(server.bodies) == before + 1, "what was found out is not found out again"
    assert server.bodies[-1].get("max_completion_tokens", server.bodies[-1].get("max_tokens")) == 512


def test_fields_are_renamed_and_left_out_as_stated_and_nothing_is_tried(server: MeasuringServer) -> None:
    server.chat = only("max_completion_tokens", "random_seed")
    fields = {"max_tokens": "max_completion_tokens", "temperature": None, "seed": "random_seed"}
    assert asked(server, ["fine"], fields=fields) == ["[[safe]]"]
    assert len(server.bodies) == 1
    assert server.bodies[0]["random_seed"] == 0


def test_the_length_is_never_left_out_by_itself(server: MeasuringServer) -> None:
    server.chat = only("temperature", "seed")
    with pytest.raises(RunError, match=r"400 Unsupported parameter: 'max_completion_tokens'; .*`fields: "):
        asked(server, ["fine"])
    assert asked(server, ["fine"], fields={"max_tokens": None}) == ["[[safe]]"]


def test_a_long_text_whose_refusal_names_a_field_changes_no_field(server: MeasuringServer) -> None:
    server.chat = for_marked((400, "'max_tokens' or 'max_completion_tokens' is too large for this context length"))
    replies = asked(server, [MARKED, "fine", MARKED], workers=1)
    assert [isinstance(reply, Lost) for reply in replies] == [True, False, True]
    assert "max_tokens" in server.bodies[-1]


def test_fields_of_a_recipe_are_checked(server: MeasuringServer) -> None:
    named = "judge={model: m, fields: {max_tokens: max_completion_tokens, temperature: null}}"
    judge = load("o-pd-dpo", ["feedback.kind=judge", named]).judge
    assert judge.fields == {"max_tokens": "max_completion_tokens", "temperature": None}
    with pytest.raises(UserError, match="fields"):
        load("o-pd-dpo", ["judge={model: m, fields: {messages: null}}"])


def test_a_judge_without_the_role_system_gets_its_instructions_with_the_question(server: MeasuringServer) -> None:
    server.chat = lambda body: (
        (400, "System role not supported") if body["messages"][0]["role"] == "system" else (200, "[[safe]]")
    )
    assert asked(server, ["fine"]) == ["[[safe]]"]
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "system\n\nfine"}]
    assert asked(server, ["fine"], fields={"system": "developer"}) == ["[[safe]]"]
    assert [turn["role"] for turn in server.bodies[-1]["messages"]] == ["developer", "user"]


def test_the_address_may_end_in_what_is_asked_and_needs_a_scheme(server: MeasuringServer) -> None:
    assert asked(server, ["fine"], endpoint=f"{server.url}/v1/chat/completions/") == ["[[yes]]"]
    with pytest.raises(UserError, match="endpoint"):
        load("o-pd-dpo", ["judge={model: m, endpoint: 'localhost:8000/v1'}"])


def test_half_of_a_surrogate_pair_is_sent_as_a_replacement(server: MeasuringServer) -> None:
    assert asked(server, ["smile \ud83d", "\ud83d\ude00"], workers=1) == ["[[yes]]"] * 2
    assert [body["messages"][1]["content"] for body in server.bodies] == ["smile \ufffd", "\U0001f600"]
    server.chat = lambda body: (200, "[[safe]]")
    assert Judge(endpoint(server)).opinions([("why ?", "smile \ud83d")], 1, 0) == [(Verdict.SAFE,)]


def test_a_key_loses_the_white_space_around_it_and_appears_in_no_message(server: MeasuringServer) -> None:
    assert key_of("judge", "KEY", {"KEY": " sk-secret\n"}) == "sk-secret"
    for broken in ("sk-\u2014secret", "sk-\nsecret"):
        with pytest.raises(UserError, match="holds characters that no key has") as refused:
            key_of("judge", "KEY", {"KEY": broken})
        assert "secret" not in str(refused.value)


def test_content_in_parts_is_their_text(server: MeasuringServer) -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "[[unsafe]]"}]}
    server.chat = lambda body: completion({"content": [thought, {"type": "text", "text": "[[safe]]"}]})
    assert asked(server, ["fine"]) == ["[[safe]]"]


# --- labels -----------------------------------------------------------------------------------------------------


def response(name: str, text: str) -> Response:
    return Response(name, Prompt("p", (1,), "how ?"), (4,), text, 0, 0)


def test_a_label_that_is_refused_is_missing_and_one_that_cannot_be_read_failed(server: MeasuringServer) -> None:
    server.chat = lambda body: (
        (400, "filtered") if MARKED in body["messages"][-1]["content"]
        else (200, "I'd rather not say") if "shy" in body["messages"][-1]["content"] else (200, "[[safe]]")
    )  # fmt: skip
    counts: dict[str, float] = {}
    labeller = JudgeLabeller(Judge(endpoint(server)), lambda: 1, counts.update)
    found = labeller.safety([response("a", "fine"), response("b", MARKED), response("c", "shy")], 2, 0)
    assert [item.labels for item in found] == [
        (Verdict.SAFE,) * 2, (Verdict.MISSING,) * 2, (Verdict.FAILED,) * 2,
    ]  # fmt: skip
    assert [item.reason.partition(":")[0] for item in found] == ["", "stopped it by a filter", "gave no verdict"]
    assert counts == {
        "judge/questions": 6, "judge/unreadable": 4, "judge/stopped_it_by_a_filter": 2, "judge/gave_no_verdict": 2,
    }  # fmt: skip


def test_a_pair_that_is_refused_is_not_asked_again(server: MeasuringServer) -> None:
    server.chat = for_marked((422, "cannot be processed"), "[[7, 3]]")
    labeller = JudgeLabeller(Judge(endpoint(server)), lambda: 1)
    fine, refused = (Pair(name, response(f"{name}1", text), response(f"{name}2", "no")) for name, text in
                     (("fine", "yes"), ("refused", MARKED)))  # fmt: skip
    first, second = labeller.compare([fine, refused], 0)
    assert (first.helpful, first.reason) == (Verdict.ABSTAIN, "")
    assert (second.helpful, second.label(HARM)) == (Verdict.MISSING, Verdict.MISSING)
    assert second.reason.startswith("refused it: 422")


def test_opinions_are_counted_from_many_threads_at_once(server: MeasuringServer) -> None:
    """A server whose every third reply fails has no long silence, however the threads come in."""
    lock, number = threading.Lock(), [0]

    def third(body: dict[str, Any]) -> Reply:
        with lock:
            number[0] += 1
            return (500, "no") if number[0] % 3 == 0 else (200, "[[safe]]")

    server.chat = third
    replies = asked(server, ["fine"] * 90, tries=1)
    assert 25 <= sum(isinstance(reply, Lost) for reply in replies) <= 35
