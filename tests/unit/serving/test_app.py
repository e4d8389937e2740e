"""The entrance in process, over an engine that repeats what it was asked: limits, deadlines, faults, what is stated.

The real engine behind it is tested in tests/serve.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from deploy.serving.app import create_app
from deploy.serving.engine import Kind, Piece, demand_version
from deploy.serving.entrance import EntranceState
from deploy.serving.requests import parse
from deploy.serving.settings import ServeArgs
from deploy.web.http_errors import ApiError
from pddpo_ray.errors import RunError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.catalog import ServedPolicy
from pddpo_ray.serving.keys import ApiKeys, Scope
from pddpo_ray.storage.whole_files import JOURNAL
from tests.served_run import SAFE, UNSAFE, ServedRun, make_run

CHAT = {"model": "released", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


class Echo:
    """An engine that answers with what it was asked. `fault` happens before the first piece, `late` after it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.checked: list[int] = []
        self.fault: Callable[[], Any] | None = None
        self.late: Callable[[], Any] | None = None
        self.broken: set[int] = set()

    async def respond(self, kind: Kind, policy: ServedPolicy, body: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        self.asked.append((policy.round, body))
        if self.fault:
            await self.fault()
        usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
        if not body.get("stream"):
            text = {"index": 0, "message": {"role": "assistant", "content": "echo"}}
            yield {"status": 200, "body": {"id": f"chatcmpl-{body['request_id']}", "choices": [text], "usage": usage}}
            return
        yield {"status": 200}
        for word in ("ec", "ho"):
            chunk = {"id": f"chatcmpl-{body['request_id']}", "choices": [{"index": 0, "delta": {"content": word}}]}
            yield f"data: {json.dumps(chunk)}\n\n"
            if self.late:
                await self.late()
        last = {"id": f"chatcmpl-{body['request_id']}", "choices": [], "usage": usage}
        yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"

    async def check(self, policy: ServedPolicy | None = None) -> dict[str, Any]:
        if policy is not None and policy.round in self.broken:
            raise RunError("log-probabilities differ")
        self.checked.append(-1 if policy is None else policy.round)
        return {}


class Caller:
    """One run, its endpoint and its keys."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.run: ServedRun = make_run(folder / "demo", (SAFE, UNSAFE))
        self.store = Store(open_database(self.run.folder / JOURNAL), "demo")
        self.engine = Echo()
        self.keys = {scope: ApiKeys(self.store).create(scope.value, scope)[1] for scope in Scope}
        args = ServeArgs(run=str(self.run.folder), **{"follow_s": 60, **settings})
        self.endpoint = EntranceState(self.store, args, self.engine, most=100)
        self.client = TestClient(create_app(self.endpoint), raise_server_exceptions=False)

    def post(self, path: str, body: Any, scope: Scope = Scope.INSPECT, **headers: str) -> Any:
        given = {"authorization": f"Bearer {self.keys[scope]}", **headers}
        return self.client.post(path, json=body, headers=given)

    def chat(self, scope: Scope = Scope.INSPECT, **changes: Any) -> Any:
        return self.post("/v1/chat/completions", {**CHAT, **changes}, scope)

    def close(self) -> None:
        self.run.close()
        self.store.engine.dispose()


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    made = Caller(tmp_path)
    yield made
    made.close()


def error_of(reply: Any) -> str:
    """The message, after the form of the error was checked."""
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


def test_every_route_but_health_wants_a_key_and_administration_its_own(caller: Caller) -> None:
    app = caller.client.app
    routes = {(method, route.path) for route in app.routes for method in route.methods}  # type: ignore[attr-defined]
    assert len(routes) >= 9
    for method, path in routes - {("GET", "/healthz"), ("GET", "/readyz")}:
        reply = caller.client.request(method, path, json={})
        assert reply.status_code == 401, path
        assert "API key" in error_of(reply)
        if path.startswith("/admin"):
            for scope in (Scope.CHAT, Scope.INSPECT):
                given = {"authorization": f"Bearer {caller.keys[scope]}"}
                assert caller.client.request(method, path, json={"round": 1}, headers=given).status_code == 403
    assert caller.client.get("/docs").status_code == caller.client.get("/openapi.json").status_code == 404


def test_strangers_are_slowed_down(caller: Caller) -> None:
    codes = [caller.client.get("/v1/models").status_code for _ in range(30)]
    assert set(codes) == {401, 429}


def test_a_key_for_applications_gets_what_is_released_and_the_mixture_alone(caller: Caller) -> None:
    assert caller.chat(Scope.CHAT).json()["pddpo"]["round"] == 1
    assert caller.chat(Scope.CHAT, model="mixture").status_code == 200
    refused = caller.chat(Scope.CHAT, model="round-2")
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    assert caller.chat(Scope.INSPECT, model="round-2").json()["pddpo"]["release"] == "unreleased"
    assert caller.chat(Scope.INSPECT, model="").json()["pddpo"]["model"] == "released"


def test_answers_say_what_is_certified_of_their_author_and_other_decoding_carries_none(caller: Caller) -> None:
    """The certificate is about temperature 1, nothing cut off, and answers of at most five tokens."""
    certified = caller.chat()
    header = certified.headers["x-pddpo-certificate"]
    assert header == certified.json()["pddpo"]["certificate"]
    assert header.startswith("certified; cost at most -")
    assert "95 % confidence" in header
    plain = {name: value for name, value in CHAT.items() if name != "max_tokens"}
    assert caller.post("/v1/chat/completions", plain).headers["x-pddpo-certificate"] == header
    assert caller.engine.asked[-1][1]["max_tokens"] == 5
    same = caller.chat(temperature=1.0, top_p=1, top_k=-1, stop=[], stream=True)
    assert same.headers["x-pddpo-certificate"] == header
    for change in ({"temperature": 0.7}, {"top_p": 0.9}, {"max_tokens": 4}, {"stop": "x"}, {"logit_bias": {"5": 9}}):
        (name,) = change
        other = caller.chat(**change)
        assert other.status_code == 200
        assert other.headers["x-pddpo-certificate"].startswith(f"none: {name}=")
        assert other.json()["pddpo"]["certificate"] == other.headers["x-pddpo-certificate"]
    for model in ("mixture", "round-2", "reference"):
        assert caller.chat(model=model, temperature=0.7).headers["x-pddpo-certificate"] == "none"


def test_other_decoding_of_a_certified_policy_is_refused_where_that_is_configured(tmp_path: Path) -> None:
    caller = Caller(tmp_path, other_decoding="refuse")
    assert caller.chat().status_code == 200
    assert "temperature=0.7 is other decoding" in error_of(caller.chat(temperature=0.7))
    assert caller.chat(model="round-2", temperature=0.7).status_code == 200
    caller.close()


def test_headers_and_body_state_the_same_also_for_strange_conversations(caller: Caller) -> None:
    reply = caller.post("/v1/chat/completions", {**CHAT, "model": "mixture", "conversation_id": "héllo\nthere"})
    stated = reply.json()["pddpo"]
    assert stated["conversation"] == "héllo\nthere"
    assert reply.headers["x-pddpo-conversation"] == "h%C3%A9llo%0Athere"
    assert reply.headers["x-pddpo-multiplier"] == ("0.1" if stated["round"] == 1 else "0.2")
    assert (reply.headers["x-pddpo-release"], stated["release"]) == ("unreleased", "unreleased")
    reference = caller.chat(model="reference")
    assert (reference.headers["x-pddpo-multiplier"], reference.json()["pddpo"]["multiplier"]) == ("none", None)


def test_only_known_fields_reach_the_engine(caller: Caller) -> None:
    caller.chat(temperature=0.5, seed=3, kv_transfer_params={"a": 1}, chat_template="{{ x }}", priority=-9, user="me")
    (_, body) = caller.engine.asked[-1]
    assert set(body) == {"model", "messages", "max_tokens", "temperature", "seed", "user", "request_id"}
    assert (body["temperature"], body["max_tokens"]) == (0.5, 5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 101}, "max_completion_tokens"),
        ({"n": 9}, "n must be"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"seed": "x"}, "seed"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages"),
        ({"tools": [{}]}, "tools"),
        ({"model": 3}, "model"),
        ({"conversation_id": 3}, "conversation_id"),
        ({"conversation_id": "x" * 201}, "conversation_id"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(caller: Caller, change: dict[str, Any], said: str) -> None:
    reply = caller.chat(**change)
    assert reply.status_code == 400
    assert said in error_of(reply)
    assert caller.engine.asked == []


def test_bodies_that_are_no_request_are_refused(caller: Caller) -> None:
    given = {"authorization": f"Bearer {caller.keys[Scope.INSPECT]}", "content-type": "application/json"}
    for content, status in ((b"{", 400), (b"[1]", 400), (b"\xff", 400), (b"x" * 300_000, 413)):
        reply = caller.client.post("/v1/chat/completions", content=content, headers=given)
        assert reply.status_code == status
        error_of(reply)
    pieces = (b"x" * 100_000 for _ in range(4))
    assert caller.client.post("/v1/chat/completions", content=pieces, headers=given).status_code == 413
    for prompt in (None, "", [], ["two", "texts"], [[1, 2], [3]]):
        assert caller.post("/v1/completions", {"model": "released", "prompt": prompt}).status_code == 400


def test_what_fails_inside_stays_inside(caller: Caller) -> None:
    async def fail() -> None:
        raise RuntimeError("the secret path /data/x")

    caller.engine.fault = fail
    reply = caller.chat()
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert "this number" in error_of(reply)
    assert reply.headers["x-pddpo-round"] == "1"


def test_a_request_that_takes_too_long_is_ended_and_said(tmp_path: Path) -> None:
    caller = Caller(tmp_path, request_s=0.2)

    async def hang() -> None:
        await asyncio.sleep(30)

    caller.engine.fault = hang
    reply = caller.chat()
    assert reply.status_code == 504
    assert "longer than 0.2 s" in error_of(reply)
    caller.engine.fault, caller.engine.late = None, hang
    lines = [line for line in caller.chat(stream=True).text.split("\n\n") if line]
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["type"] == "api_error"
    assert lines[-1] == "data: [DONE]"
    caller.close()


def test_a_stream_that_breaks_ends_with_an_error_and_not_in_silence(caller: Caller) -> None:
    async def fail() -> None:
        raise RuntimeError("the secret path /data/x")

    caller.engine.late = fail
    text = caller.chat(stream=True).text
    assert "secret" not in text
    assert '"error"' in text
    assert text.endswith("data: [DONE]\n\n")


def test_tokens_are_reserved_and_what_was_not_used_is_given_back(caller: Caller) -> None:
    """A key of 40 tokens a minute: each request reserves 5 + 2 and uses 3, so 12 fit where reservations alone let 5."""
    secret = ApiKeys(caller.store).create("small", Scope.CHAT, tokens_per_minute=40, requests_per_minute=1000)[1]
    asyncio.run(caller.endpoint.look())
    caller.keys[Scope.CHAT] = secret
    replies = [caller.chat(Scope.CHAT) for _ in range(20)]
    good = [reply for reply in replies if reply.status_code == 200]
    assert 11 <= len(good) <= 16
    assert error_of(replies[-1]).startswith("too many tokens; try again in")
    assert int(replies[-1].headers["retry-after"]) >= 1
    assert "has 40 a minute" in error_of(caller.chat(Scope.CHAT, max_tokens=60))


def test_requests_are_limited_by_key(caller: Caller) -> None:
    secret = ApiKeys(caller.store).create("slow", Scope.CHAT, requests_per_minute=3)[1]
    asyncio.run(caller.endpoint.look())
    caller.keys[Scope.CHAT] = secret
    assert [caller.chat(Scope.CHAT).status_code for _ in range(5)] == [200, 200, 200, 429, 429]
    assert caller.chat(Scope.INSPECT).status_code == 200


def test_other_sites_may_not_call_unless_they_are_listed(tmp_path: Path) -> None:
    asking = {"origin": "https://a.example", "access-control-request-method": "POST"}
    for origins, allowed in (((), None), (("https://a.example",), "https://a.example")):
        caller = Caller(tmp_path / str(len(origins)), cors_origins=origins)
        reply = caller.client.options("/v1/chat/completions", headers=asking)
        assert reply.headers.get("access-control-allow-origin") == allowed
        caller.close()


def test_a_release_is_taken_over_only_after_its_policy_has_answered(caller: Caller) -> None:
    reply = caller.post("/admin/release", {"round": 2, "force": True}, Scope.ADMIN)
    assert reply.json() == {"released": 2}
    assert caller.engine.checked == [2]
    assert caller.post("/admin/rollback", {}, Scope.ADMIN).json() == {"released": 1}
    caller.run.add_round(SAFE)
    caller.engine.broken = {3}
    with pytest.raises(RunError):
        asyncio.run(caller.endpoint.look())
    assert caller.endpoint.catalog.released == 1
    asyncio.run(caller.endpoint.look())  # not tried again at once: that would load it over and over
    caller.engine.broken = set()
    caller.run.add_round(UNSAFE)
    asyncio.run(caller.endpoint.look())
    assert (caller.endpoint.catalog.released, caller.endpoint.catalog.rounds) == (3, (1, 2, 3, 4))
    told = caller.client.get("/admin/releases", headers={"authorization": f"Bearer {caller.keys[Scope.ADMIN]}"})
    assert [line["action"] for line in told.json()["history"]] == [
        *("release", "release", "rollback", "release"),
    ]


def test_administration_of_what_is_not_there_is_a_conflict(caller: Caller) -> None:
    assert caller.post("/admin/release", {"round": 7}, Scope.ADMIN).status_code == 409
    assert caller.post("/admin/release", {"round": 1}, Scope.ADMIN).status_code == 409
    assert caller.post("/admin/release", {"round": "1; drop"}, Scope.ADMIN).status_code == 400


def test_feedback_is_for_whoever_got_the_reply(caller: Caller) -> None:
    id_ = caller.chat(Scope.CHAT).json()["id"]
    body = {"id": id_, "verdict": "unsafe"}
    assert caller.post("/v1/feedback", body, Scope.INSPECT).status_code == 404
    assert caller.post("/v1/feedback", body, Scope.CHAT).status_code == 201
    streamed = caller.chat(Scope.CHAT, stream=True)
    id_ = json.loads(streamed.text.split("\n\n")[0].removeprefix("data: "))["id"]
    assert caller.post("/v1/feedback", {"id": id_, "verdict": "up"}, Scope.CHAT).status_code == 201


def test_readiness_asks_an_engine(caller: Caller) -> None:
    assert caller.client.get("/healthz").json() == {"ok": True}
    assert caller.client.get("/readyz").json() == {"ok": True}
    assert caller.client.get("/readyz").json() == {"ok": True}
    assert caller.engine.checked == [-1]


def test_a_conversation_with_a_seed_keeps_its_policy_while_it_grows() -> None:
    system = {"role": "system", "content": "be kind"}
    messages: list[dict[str, Any]] = [system, {"role": "user", "content": "hello"}]
    longer = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and now?"}]
    calls = [parse("chat", {"messages": each, "seed": 5}, None, 10) for each in (messages, longer)]
    assert calls[0].conversation == calls[1].conversation
    with pytest.raises(ApiError):
        parse("chat", [], None, 10)


def test_an_answer_from_other_weights_is_an_error() -> None:
    class Span:
        version = "4"

    class Completion:
        weight_versions = (Span(),)

    class Output:
        outputs = (Completion(),)

    demand_version(Output(), "4")
    demand_version(Output(), None)
    with pytest.raises(RunError, match="the engine holds 6"):
        demand_version(Output(), "6")
