"""What clients give to training: consent, rules, caps, verdicts and withdrawal at the entrance, in process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.serving.kept_prompts import consents
from deploy.serving.requests import parse
from pddpo_ray.cli.main import app
from pddpo_ray.errors import UserError
from pddpo_ray.journal.served import KeptPrompt, kept_prompts
from pddpo_ray.journal.withdrawing import GONE
from pddpo_ray.records import Message
from pddpo_ray.serving.keys import ApiKey, ApiKeys, Scope
from pddpo_ray.serving.scrubbing import scrubber
from tests.unit.serving.test_app import Caller

YES = {"x-pddpo-training": "yes"}
AGREED = ApiKey("shop", Scope.CHAT, 1, 1, consented=True)


@pytest.fixture
def asked(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Caller]:
    """An endpoint with the settings of the test's parameter; its lifespan runs, as in a server."""
    made = Caller(tmp_path, **getattr(request, "param", {"keep": "request"}))
    with made.client:
        yield made
    made.close()


def ask(caller: Caller, text: str, scope: Scope = Scope.INSPECT, *, headers: Any = None, **changes: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    body = {"model": "released", "messages": messages, "max_tokens": 5, **changes}
    reply = caller.post("/v1/chat/completions", body, scope, **(YES if headers is None else headers))
    assert reply.status_code == 200, reply.text
    return reply


def kept(caller: Caller) -> list[KeptPrompt]:
    assert caller.client.portal is not None
    caller.client.portal.call(caller.endpoint.kept.settled)
    return kept_prompts(caller.store.engine, caller.store.run)


def questions(caller: Caller) -> list[str]:
    return [one.messages[-1].content for one in kept(caller)]


# --- consent ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("consent", "key", "said", "may"),
    [
        ("off", AGREED, "yes", False),
        ("request", AGREED, None, False),
        ("request", AGREED, "yes", True),
        ("request", AGREED, "maybe", False),
        ("key", AGREED, None, True),
        ("key", AGREED, "no", False),
        ("key", ApiKey("shop", Scope.CHAT, 1, 1), "yes", False),
    ],
)
def test_who_consents_to_what(consent: Any, key: ApiKey, said: str | None, may: bool) -> None:
    assert consents(consent, key, said) is may


@pytest.mark.parametrize("asked", [{}], indirect=True)
def test_without_the_operators_opt_in_nothing_is_kept_whatever_a_client_says(asked: Caller) -> None:
    reply = ask(asked, "how do I sleep better")
    said = asked.post("/v1/feedback", {"id": reply.json()["id"], "verdict": "up"}).json()
    assert (kept(asked), said["kept"]) == ([], False)


def test_only_what_its_sender_consents_to_is_kept(asked: Caller) -> None:
    ask(asked, "kept", user="ana")
    ask(asked, "streamed", stream=True)
    ask(asked, "not asked", headers={})
    ask(asked, "refused", headers={"x-pddpo-training": "no"})
    asked.post(
        "/v1/completions", {"model": "released", "prompt": "no conversation", "max_tokens": 5}, Scope.INSPECT, **YES
    )
    assert questions(asked) == ["kept", "streamed"]
    assert [(one.text, one.verdict) for prompt in kept(asked) for one in prompt.answers] == [("echo", None)] * 2
    database = asked.run.folder.joinpath("journal.sqlite").read_bytes()
    assert b"not asked" not in database
    assert b"ana" not in b"".join(row.encode() for row in users(asked))


def users(caller: Caller) -> list[str]:
    with caller.store.engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT user FROM served_prompt").scalars())


@pytest.mark.parametrize("asked", [{"keep": "key"}], indirect=True)
def test_a_key_consents_for_its_requests_and_a_request_may_still_say_no(asked: Caller) -> None:
    keys = ApiKeys(asked.store)
    asked.keys[Scope.CHAT] = keys.create("shop", Scope.CHAT, consented=True)[1]
    asked.client.portal.call(asked.endpoint.look)  # type: ignore[union-attr]
    ask(asked, "of the shop", Scope.CHAT, headers={})
    ask(asked, "not this one", Scope.CHAT, headers={"x-pddpo-training": "no"})
    ask(asked, "of another key", headers=YES)
    assert questions(asked) == ["of the shop"]
    renewed, _ = keys.rotate("shop", 0)
    assert renewed.consented


def test_a_conversation_is_read_as_turns_and_says_what_in_it_was_never_tested() -> None:
    user = {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}]}
    before = [{"role": "developer", "content": "be brief"}, {"role": "assistant", "content": "hello: you"}]
    call = parse("chat", {"messages": [*before, user]}, None, 10)
    assert call.turns == (
        Message("system", "be brief"),
        Message("assistant", "hello: you"),
        Message("user", "two\nparts"),
    )
    assert call.untested is None
    for messages in ([user, *before], [{"role": "tool", "content": "x"}, user], [{**user, "name": "ana"}]):
        assert parse("chat", {"messages": messages}, None, 10).untested


# --- rules and caps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("write to Ana.Li+x@mail.example.co.uk please", "write to [mail] please"),
        ("call +44 20 7946 0958 or (020) 7946 0958", "call [phone] or [phone]"),
        ("call 415-555-0134 today", "call [phone] today"),
        ("my card is 4111 1111 1111 1111.", "my card is [card]."),
        ("IBAN DE89 3704 0044 0532 0130 00, thanks", "IBAN [account], thanks"),
        ("ssn 078-05-1120", "ssn [number]"),
        ("host 192.168.10.254 is down", "host [address] is down"),
        ("key sk-proj-abcdefghijklmnop1234 and AKIAIOSFODNN7EXAMPLE", "key [key] and [key]"),
        ("my password is hunter22, why", "my password is [secret], why"),
        ("postgres://me:pw@db.example/x", "postgres://[login]@db.example/x"),
    ],
)
def test_what_names_or_opens_something_is_taken_out(text: str, left: str) -> None:
    assert scrubber()(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "In 1969 there were 3,500,000 of them, 12.5 % more than in 2024-11-23.",
        "what is 1000000 + 2500000",
        "version 3.11.2 of python, chapter 4.2.1",
        "a 10-20 minute walk, open 9:00 to 17:30",
        "the password manager and a secret garden",
        "the numbers 1 2 3 4 5 6 7 8 9 10",
    ],
)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert scrubber()(text) == text


def test_a_text_with_a_private_key_is_not_kept_at_all(asked: Caller) -> None:
    ask(asked, "-----BEGIN RSA PRIVATE KEY-----\nMIIE")
    ask(asked, "I am at ana@mail.example")
    assert questions(asked) == ["I am at [mail]"]
    assert b"ana@mail.example" not in asked.run.folder.joinpath("journal.sqlite-wal").read_bytes()
    text = asked.client.get("/metrics", headers={"authorization": f"Bearer {asked.keys[Scope.INSPECT]}"}).text
    assert 'pddpo_serving_kept_total{as="scrubbed-whole",run="demo"} 1.0' in text


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("[", "no file of rules"),
        ("{}", "write a list of rules"),
        ("[{name: a, pattern: '('}]", "say either"),
        ("[{name: a, pattern: '(', with: b}]", r"rule 1 \(a\)"),
        ("[{name: a, pattern: 'x', with: '\\3'}]", r"rule 1 \(a\)"),
        ("[{name: a, with: b}]", "write name, pattern"),
    ],
)
def test_a_wrong_file_of_rules_is_one_clear_line(rules: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(rules)
    with pytest.raises(UserError, match=said):
        scrubber(file)


@pytest.mark.parametrize("asked", [{"keep": "request", "keep_per_key": 2, "keep_total": 3}], indirect=True)
def test_caps_hold_for_each_key_and_for_all(asked: Caller) -> None:
    for number in range(3):
        ask(asked, f"first {number}")
    for number in range(3):
        ask(asked, f"second {number}", Scope.CHAT)
    assert questions(asked) == ["first 0", "first 1", "second 0"]
    ask(asked, "first 0")  # the same prompt again costs no place
    assert [len(one.answers) for one in kept(asked)] == [2, 1, 1]


# --- verdicts and withdrawal ------------------------------------------------------------------------------------------


def test_a_verdict_of_a_kept_answer_is_its_readers_last_word(asked: Caller) -> None:
    first, other = (ask(asked, "how", headers=headers).json()["id"] for headers in (YES, {}))
    for reply, verdict, is_kept in ((first, "up", True), (first, "unsafe", True), (other, "down", False)):
        said = asked.post("/v1/feedback", {"id": reply, "verdict": verdict}).json()
        assert said["kept"] is is_kept
    assert [one.verdict for prompt in kept(asked) for one in prompt.answers] == ["unsafe"]


def test_what_a_client_sent_can_be_withdrawn_by_its_key_alone(asked: Caller) -> None:
    mine = ask(asked, "a secret that I regret", Scope.CHAT).json()["id"]
    ask(asked, "of ben", Scope.CHAT, user="ben")
    ask(asked, "of ben with another key", user="ben")
    asked.post("/v1/feedback", {"id": mine, "verdict": "down", "note": "I regret this note"}, Scope.CHAT)
    assert asked.post("/v1/withdraw", {"id": mine}).json()["prompts"] == 0  # scope inspect, another key
    assert len(kept(asked)) == 3
    done = asked.post("/v1/withdraw", {"id": mine}, Scope.CHAT).json()
    assert done == {"prompts": 1, "answers": 1, "questions": 1}
    assert asked.post("/v1/feedback", {"id": mine, "verdict": "up"}, Scope.CHAT).status_code == 404
    assert asked.post("/v1/withdraw", {"user": "ben"}, Scope.CHAT).json()["prompts"] == 1
    assert questions(asked) == ["of ben with another key"]
    assert asked.post("/v1/withdraw", {"all": True}).json()["prompts"] == 1
    assert kept(asked) == []
    assert asked.post("/v1/withdraw", {}).status_code == 400
    for file in asked.run.folder.glob("journal.sqlite*"):
        assert b"regret" not in file.read_bytes()
    with asked.store.engine.connect() as connection:
        asks = connection.exec_driver_sql("SELECT prompt, first, state FROM task").all()
    assert asks == [(GONE, GONE, "dropped")]


@pytest.mark.slow
def test_the_command_withdraws_what_an_operator_names(asked: Caller) -> None:
    reply = ask(asked, "by its id").json()["id"]
    ask(asked, "by its user", user="ana")
    ask(asked, "by its key", Scope.CHAT)
    run = str(asked.run.folder)
    shown = CliRunner().invoke(app, ["withdraw", run, "--reply", reply])
    assert (shown.exit_code, "withdrawn: 1 prompts with 1 served answers" in shown.output) == (0, True)
    assert CliRunner().invoke(app, ["withdraw", run, "--key", "inspect", "--user", "ana"]).exit_code == 0
    assert questions(asked) == ["by its key"]
    assert CliRunner().invoke(app, ["withdraw", run, "--key", "chat"]).exit_code == 0
    assert kept(asked) == []
    nothing = CliRunner().invoke(app, ["withdraw", run])
    assert nothing.exit_code != 0
