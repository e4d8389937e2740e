"""The entrance in process, over an engine that repeats what it was asked: limits, deadlines, faults, what is stated.

The real engine behind it is tested in tests/serve.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from deploy.serving.app import create_app
from deploy.serving.app_state import EntranceState
from deploy.serving.engines.engine import EngineGone, Piece, TokensCall, demand_version, writes_json
from deploy.serving.metrics import NAMES
from deploy.serving.request_fields import Kind
from deploy.serving.requests import parse
from deploy.serving.settings import ServeArgs
from deploy.serving.traffic import HANGS_S, Traffic
from deploy.web.http_errors import ApiError
from pddpo_ray import __version__
from pddpo_ray.errors import RunError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.catalog import ServedPolicy
from pddpo_ray.serving.keys import ApiKeys, Scope
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.chat_tokenizers import gpt_2
from tests.support.served_run import SAFE, UNSAFE, ServedRun, make_run
from tests.support.tiny_language_model import word_tokenizer

CHAT: dict[str, Any] = {"model": "released", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


class Echo:
    """An engine that answers with what it was asked. `fault` happens before the first piece, `late` after it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.traces: list[str] = []
        self.checked: list[int] = []
        self.fault: Callable[[], Any] | None = None
        self.late: Callable[[], Any] | None = None
        self.broken: set[int] = set()
        self.dead = False

    async def respond(
        self, kind: Kind, policy: ServedPolicy, body: dict[str, Any], trace: str = ""
    ) -> AsyncGenerator[Piece, None]:
        self.traces.append(trace)
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

    async def tokens(self, way: TokensCall, body: dict[str, Any]) -> dict[str, Any]:
        if self.dead:
            raise EngineGone("vLLM has died")
        return {"status": 200, "body": {"way": way, **body}}

    async def alive(self) -> None:
        if self.dead:
            raise EngineGone("vLLM has died")


class Caller:
    """One run, its endpoint and its keys."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.run: ServedRun = make_run(folder / "demo", (SAFE, UNSAFE))
        self.store = Store(open_database(self.run.folder / JOURNAL), "demo")
        self.engine = Echo()
        self.keys = {scope: ApiKeys(self.store).create(scope.value, scope)[1] for scope in Scope}
        limits, control = settings.pop("limits", ()), settings.pop("control", ())
        args = ServeArgs(run=str(self.run.folder), **{"follow_s": 60, **settings})
        self.endpoint = EntranceState(
            self.store,
            args,
            self.engine,
            most=100,
            decoding={"temperature": 1.0, "max_tokens": 5},
            control=control,
            limits=limits,
        )
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
    for method, path in routes - {("GET", "/healthz"), ("GET", "/health"), ("GET", "/readyz")}:
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


def test_a_key_for_applications_gets_what_is_released_alone_and_is_not_told_the_round(caller: Caller) -> None:
    reply = caller.chat(Scope.CHAT)
    assert caller.engine.asked[-1][0] == 1
    hidden = {"round", "policy_version", "multiplier"}
    assert not hidden & set(reply.json()["pddpo"])
    assert not {f"x-pddpo-{name.replace('_', '-')}" for name in hidden} & set(reply.headers)
    assert '"round"' not in caller.chat(Scope.CHAT, stream=True).text
    bearer = {"authorization": f"Bearer {caller.keys[Scope.CHAT]}"}
    assert '"round"' not in caller.client.get("/v1/models", headers=bearer).text
    assert caller.chat(Scope.INSPECT).json()["pddpo"]["round"] == 1
    asked = len(caller.engine.asked)
    for model in ("round-2", "mixture", "reference"):
        refused = caller.chat(Scope.CHAT, model=model)
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    assert len(caller.engine.asked) == asked
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
    respond = caller.engine.respond

    async def in_little_room(*asked: Any) -> AsyncGenerator[Piece, None]:
        async for piece in respond(*asked):
            yield {**piece, "room": 2} if isinstance(piece, dict) else piece

    caller.engine.respond = in_little_room  # type: ignore[method-assign, assignment]
    for stream in (False, True):
        reply = caller.chat(stream=stream)
        assert (reply.status_code, "at most 2 tokens" in error_of(reply)) == (400, True)
    assert caller.endpoint.traffic.ongoing == 0
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
    caller.chat(temperature=0.5, seed=3, metadata={"a": 1}, session_id="s", priority=0, tools=[], user="me")
    (_, body) = caller.engine.asked[-1]
    assert set(body) == {"model", "messages", "max_tokens", "temperature", "seed", "user", "request_id"}
    assert (body["temperature"], body["max_tokens"]) == (0.5, 5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
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
    wrong: list[Any] = [None, "", [], [""], [[]], [1, "two"], [[1], "two"], [True], [-1], [["two"]], ["x"] * 65]
    for prompt in wrong:
        assert caller.post("/v1/completions", {"model": "released", "prompt": prompt}).status_code == 400


def test_what_fails_inside_stays_inside(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("the secret path /data/x")

    caller.engine.fault = fail
    with caplog.at_level(logging.ERROR):
        reply = caller.chat()
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert "this number" in error_of(reply)
    (line,) = [record for record in caplog.records if hasattr(record, "error_number")]
    assert error_of(reply).endswith(str(line.error_number)), "the log explains the number, as a field of its own"
    assert "the secret path /data/x" in line.getMessage()
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


def test_a_stopping_endpoint_refuses_what_is_new_and_lets_a_stream_end(caller: Caller) -> None:
    """The stream is held after its first word until the endpoint stops; it still says all of its words."""
    traffic = caller.endpoint.traffic
    seen: list[Any] = []

    async def stop() -> None:
        if not traffic.stopping:
            seen.append(traffic.ongoing)
            traffic.stopping = True
            refused = await asyncio.to_thread(caller.chat)
            seen.append((refused.status_code, refused.headers["retry-after"], error_of(refused)))

    caller.engine.late = stop
    text = caller.chat(stream=True).text
    assert seen == [1, (503, "5", "this endpoint is stopping; try again in 5 s")]
    assert '"ho"' in text
    assert text.endswith("data: [DONE]\n\n")
    assert '"error"' not in text
    ready = caller.client.get("/readyz")
    assert (ready.status_code, ready.headers["retry-after"]) == (503, "5")
    assert caller.client.get("/healthz").status_code == 200
    assert traffic.ongoing == 0


def test_a_dead_engine_is_said_with_a_time_to_wait_and_readiness_knows_it_at_once(caller: Caller) -> None:
    assert caller.client.get("/readyz").status_code == 200

    async def gone() -> None:
        raise EngineGone("actor died: /data/x")

    caller.engine.fault, caller.engine.dead = gone, True
    first, asked = caller.chat(), len(caller.engine.asked)
    assert (first.status_code, first.headers["retry-after"]) == (503, "5")
    assert "another one is being started" in error_of(first)
    assert "/data" not in first.text
    assert caller.client.get("/readyz").status_code == 503
    assert (caller.chat(stream=True).status_code, len(caller.engine.asked)) == (503, asked)
    asyncio.run(caller.endpoint.pulse())
    assert caller.chat().status_code == 503
    caller.engine.fault, caller.engine.dead = None, False
    asyncio.run(caller.endpoint.pulse())
    assert caller.chat().status_code == 200
    assert caller.client.get("/readyz").status_code == 200
    caller.engine.dead = True
    asyncio.run(caller.endpoint.pulse())
    assert (caller.client.get("/readyz").status_code, caller.chat().status_code) == (503, 503)
    assert caller.endpoint.traffic.ongoing == 0


def test_a_full_endpoint_refuses_answers_and_nothing_else() -> None:
    times = [0.0]
    traffic = Traffic(2, lambda: times[0])
    traffic.enter()
    traffic.enter()
    with pytest.raises(ApiError, match="2 requests are under way") as refused:
        traffic.enter()
    assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "1"})
    assert traffic.open
    traffic.leave()
    traffic.demand()
    times[0] = HANGS_S + 1
    traffic.heard()
    traffic.silent()
    assert traffic.open
    times[0] += HANGS_S + 1
    traffic.silent()
    assert not traffic.open
    traffic.heard()
    assert not traffic.open
    traffic.came_back()
    assert traffic.open


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
    assert 'pddpo_serving_undelivered{run="demo"} 1.0' in metrics_of(caller)
    asyncio.run(caller.endpoint.look())  # not tried again at once: that would load it over and over
    caller.engine.broken = set()
    caller.run.add_round(UNSAFE)
    asyncio.run(caller.endpoint.look())
    assert 'pddpo_serving_undelivered{run="demo"} 0.0' in metrics_of(caller)
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


# --- what clients of OpenAI's interface send --------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[1, 2], ["two", "texts"], [[1, 2], [3]]])
def test_completions_take_token_ids_and_lists_of_prompts(caller: Caller, prompt: Any) -> None:
    assert caller.post("/v1/completions", {"model": "released", "prompt": prompt}).status_code == 200
    assert caller.engine.asked[-1][1]["prompt"] == prompt


def test_a_list_of_prompts_reserves_tokens_for_each(caller: Caller) -> None:
    one, three = (parse("completion", {"prompt": texts, "max_tokens": 9}, None, 99) for texts in (["a"], ["a"] * 3))
    assert three.reserve == pytest.approx(3 * one.reserve, abs=1)
    assert (one.prompts, three.prompts) == (1, 3)


def test_a_reply_to_several_prompts_is_no_answer_that_a_verdict_could_be_about(caller: Caller) -> None:
    reply = caller.post("/v1/completions", {"model": "released", "prompt": ["a", "b"]})
    assert caller.post("/v1/feedback", {"id": reply.json()["id"], "verdict": "up"}).status_code == 404


def test_the_log_probabilities_of_a_prompt_alone_can_be_asked_for(caller: Caller) -> None:
    body = {"model": "released", "prompt": [1, 2], "max_tokens": 0, "logprobs": 1}
    assert caller.post("/v1/completions", {**body, "echo": True}).status_code == 200
    assert caller.engine.asked[-1][1]["max_tokens"] == 0
    assert "max_tokens" in error_of(caller.post("/v1/completions", body))


def test_tools_that_must_not_be_called_are_left_out(caller: Caller) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert caller.chat(tools=tools, tool_choice="none").status_code == 200
    assert not {"tools", "tool_choice"} & set(caller.engine.asked[-1][1])
    assert caller.chat(tools=tools).status_code == 400
    assert caller.chat(tools=tools, tool_choice="auto").status_code == 400


@pytest.mark.parametrize("depth", [40, 900, 100_000])
def test_a_request_of_many_levels_is_refused_in_words(caller: Caller, depth: int) -> None:
    text = '{"model": "released", "prompt": ' + "[" * depth + "]" * depth + "}"
    headers = {"authorization": f"Bearer {caller.keys[Scope.CHAT]}", "content-type": "application/json"}
    reply = caller.client.post("/v1/completions", content=text, headers=headers)
    assert (reply.status_code, "levels deep" in error_of(reply)) == (400, True)


def test_parts_that_are_not_text_are_refused_before_the_engine_sees_them(caller: Caller) -> None:
    image = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
    reply = caller.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, image]}])
    assert (reply.status_code, caller.engine.asked) == (400, [])
    assert "text alone" in error_of(reply)


def test_models_say_when_they_were_made(caller: Caller) -> None:
    key = {"authorization": f"Bearer {caller.keys[Scope.INSPECT]}"}
    created = {each["id"]: each["created"] for each in caller.client.get("/v1/models", headers=key).json()["data"]}
    assert set(created) == {"released", "mixture", "round-1", "round-2", "reference"}
    now = time.time()
    assert all(now - 3600 < each <= now for each in created.values())
    assert created["reference"] <= created["round-1"] <= created["round-2"] == created["mixture"]


def test_a_model_is_described_to_keys_that_may_ask_for_it_alone(caller: Caller) -> None:
    def described(scope: Scope, name: str) -> Any:
        return caller.client.get(f"/v1/models/{name}", headers={"authorization": f"Bearer {caller.keys[scope]}"})

    for scope, name in ((Scope.INSPECT, "round-1"), (Scope.CHAT, "released")):
        reply = described(scope, name)
        assert (reply.status_code, reply.json()["id"]) == (200, name)
    refusals = [described(Scope.CHAT, name) for name in ("round-1", "nowhere")]
    assert [reply.status_code for reply in refusals] == [404, 404]
    assert [error_of(reply).replace("nowhere", "round-1") for reply in refusals] == [error_of(refusals[0])] * 2


def test_responses_are_refused_with_a_body_that_says_what_to_use(caller: Caller) -> None:
    reply = caller.post("/v1/responses", {"model": "released", "input": "hello"})
    assert (reply.status_code, "/v1/chat/completions" in error_of(reply)) == (404, True)


def test_health_and_version_are_where_clients_of_vllm_look(caller: Caller) -> None:
    assert caller.client.get("/health").json() == {"ok": True}
    assert caller.client.get("/version").status_code == 401
    key = {"authorization": f"Bearer {caller.keys[Scope.CHAT]}"}
    assert caller.client.get("/version", headers=key).json()["version"] == __version__


def test_texts_become_token_ids_by_the_engines_own_tokenizer(caller: Caller) -> None:
    reply = caller.post("/tokenize", {"model": "released", "prompt": "a", "lora_path": "x"}, Scope.CHAT)
    assert reply.json() == {"way": "tokenize", "prompt": "a"}
    assert caller.post("/detokenize", {"tokens": [1]}, Scope.CHAT).json() == {"way": "detokenize", "tokens": [1]}
    assert caller.client.post("/tokenize", json={"prompt": "a"}).status_code == 401
    caller.engine.dead = True
    dead = caller.post("/tokenize", {"prompt": "a"}, Scope.CHAT)
    assert (dead.status_code, "retry-after" in dead.headers) == (503, True)


def metrics_of(caller: Caller) -> str:
    return caller.endpoint.metrics.text(caller.endpoint.catalog, 0, True, 0).decode()


def test_a_vocabulary_of_words_cannot_write_json() -> None:
    assert not writes_json(word_tokenizer())
    assert writes_json(gpt_2())


# --- Prometheus -------------------------------------------------------------------------------------------------------


def samples(caller: Caller, scope: Scope = Scope.INSPECT) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What /metrics says, by name and labels without the run's, as Prometheus' own parser reads it."""
    reply = caller.client.get("/metrics", headers={"authorization": f"Bearer {caller.keys[scope]}"})
    assert reply.status_code == 200
    return {
        (one.name, tuple(sorted((k, v) for k, v in one.labels.items() if k != "run"))): one.value
        for family in text_string_to_metric_families(reply.text)
        for one in family.samples
    }


def test_metrics_count_requests_tokens_refusals_and_what_is_served(caller: Caller) -> None:
    caller.chat(Scope.CHAT)
    caller.chat(Scope.CHAT, stream=True)
    caller.chat(Scope.CHAT, n=0)
    caller.client.post("/v1/chat/completions", json=CHAT)
    caller.engine.fault = failing
    caller.chat(model="round-2")
    seen = samples(caller)
    one = (("model", "released"), ("round", "1"))
    assert seen["pddpo_serving_requests_total", (*one, ("status", "200"))] == 2
    assert seen["pddpo_serving_tokens_total", one] == 6
    assert seen["pddpo_serving_requests_total", (("model", "round-k"), ("round", "2"), ("status", "500"))] == 1
    assert seen["pddpo_serving_errors_total", ()] == 1
    assert seen["pddpo_serving_refused_total", (("status", "400"),)] == 1
    assert seen["pddpo_serving_refused_total", (("status", "401"),)] == 1
    assert seen["pddpo_serving_first_piece_seconds_count", (("model", "released"),)] == 2
    assert seen["pddpo_serving_request_seconds_count", (("model", "round-k"),)] == 1
    assert seen["pddpo_serving_ongoing", ()] == 0
    assert seen["pddpo_serving_accepting", ()] == 1
    assert seen["pddpo_serving_released_round", ()] == 1
    assert seen["pddpo_serving_certified", (("model", "released"),)] == 1
    assert seen["pddpo_serving_certified", (("model", "mixture"),)] == 0
    text = metrics_of(caller)
    assert set(NAMES) == {name for name in re.findall(r"# TYPE (\w+) ", text) if not name.endswith("_created")}


def test_metrics_are_for_keys_of_inspection(caller: Caller) -> None:
    assert caller.client.get("/metrics").status_code == 401
    chat = {"authorization": f"Bearer {caller.keys[Scope.CHAT]}"}
    assert caller.client.get("/metrics", headers=chat).status_code == 403


async def failing() -> None:
    raise RuntimeError("a fault inside")
