"""The entrance: keys and limits, the draw of k, and what every reply states. A value that can be called in process.

app = create_app(state)
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

from fastapi import Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from deploy.serving import verdicts
from deploy.serving.engine import TOKENS_FIELDS, EngineGone, Kind, Piece, TokensCall
from deploy.serving.entrance import EntranceState, Reply
from deploy.serving.kept_prompts import CONSENT_HEADER, turns_of
from deploy.serving.requests import KNOWN, Call, error_body, error_reply, parse, read_json
from deploy.serving.tracing import Span
from deploy.serving.traffic import ENGINE_S, SOON_S
from deploy.web.http_errors import ApiError, Failure, hidden
from deploy.web.web_app import address, bearer_token, healthy, web_app
from pddpo_ray import __version__
from pddpo_ray.journal.served import Sent
from pddpo_ray.limits.sources import Answer
from pddpo_ray.loop.taking_back import take_back
from pddpo_ray.serving.alarms import answering_weights
from pddpo_ray.serving.catalog import NONE, RELEASED, NotServed, ServedPolicy, facts
from pddpo_ray.serving.keys import ApiKey, Scope

logger = logging.getLogger("deploy.serving")

CONVERSATION, CERTIFICATE = "x-conversation-id", "x-pddpo-certificate"
STATED = ("run", "model", "round", "policy_version", "multiplier", "release", "certificate")
"""What `x-pddpo-…` headers say; the body's `pddpo` field says the same."""


def create_app(state: EntranceState) -> FastAPI:
    """The application over one state; its lifespan follows the run."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(each)
            for each in (state.follow(), state.watch(), state.measured.work(), state.kept.work())
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    app = web_app(
        "pddpo_ray serving",
        error_reply,
        KNOWN,
        malformed=400,
        busy="the database is busy",
        body_bytes=lambda _path: state.args.body_bytes,
        lifespan=lifespan,
    )
    app.state.entrance = state
    for path in ("/healthz", "/health"):
        app.add_api_route(path, healthy, methods=["GET"])
    app.add_api_route("/readyz", ready, methods=["GET"])
    app.add_api_route("/version", version, methods=["GET"])
    app.add_api_route("/metrics", metrics, methods=["GET"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/models/{name}", model, methods=["GET"])
    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", completion, methods=["POST"], response_model=None)
    app.add_api_route("/v1/responses", no_responses, methods=["POST"])
    app.add_api_route("/tokenize", tokenize, methods=["POST"])
    app.add_api_route("/detokenize", detokenize, methods=["POST"])
    app.add_api_route("/v1/feedback", give_feedback, methods=["POST"])
    app.add_api_route("/v1/withdraw", withdraw, methods=["POST"])
    app.add_api_route("/admin/releases", history, methods=["GET"])
    app.add_api_route("/admin/release", release, methods=["POST"])
    app.add_api_route("/admin/rollback", rollback, methods=["POST"])
    if state.args.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(state.args.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", CONVERSATION, CONSENT_HEADER],
            expose_headers=[f"x-pddpo-{name.replace('_', '-')}" for name in (*STATED, "conversation")],
        )
    return app


def state_of(request: Request) -> EntranceState:
    return cast(EntranceState, request.app.state.entrance)


Parts = Annotated[EntranceState, Depends(state_of)]


def caller(request: Request, parts: Parts) -> ApiKey:
    """The key of the request; every route but the health checks asks for one."""
    return parts.recognise(bearer_token(request), address(request))


Caller = Annotated[ApiKey, Depends(caller)]


def administrator(parts: Parts, key: Caller) -> ApiKey:
    parts.demand(key, Scope.ADMIN)
    return key


Administrator = Annotated[ApiKey, Depends(administrator)]


# --- health and models ------------------------------------------------------------------------------------------------


async def ready(parts: Parts) -> dict[str, bool]:
    """An engine just generated a token from the version that it should hold."""
    if not await parts.ready():
        parts.traffic.demand()
        raise ApiError(503, "no engine is ready", headers={"Retry-After": str(SOON_S)})
    return {"ok": True}


async def version(parts: Parts, key: Caller) -> dict[str, str]:
    """Of this package, under the name that clients of vLLM know."""
    return {"version": __version__, "run": parts.catalog.run}


async def metrics(parts: Parts, key: Caller) -> Response:
    """For Prometheus, which sends a key of scope inspect as its bearer token."""
    parts.demand(key, Scope.INSPECT)
    text = parts.metrics.text(parts.catalog, parts.traffic.ongoing, parts.traffic.open, parts.store.clock())
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def models(parts: Parts, key: Caller) -> dict[str, Any]:
    """What this key may ask for."""
    return {"object": "list", "data": parts.catalog.models(key.scope)}


async def model(name: str, parts: Parts, key: Caller) -> dict[str, Any]:
    for entry in parts.catalog.models(key.scope):
        if entry["id"] == name:
            return entry
    raise ApiError(404, f"the model {name!r} does not exist, or key {key.name!r} may not ask for it")


# --- answers ----------------------------------------------------------------------------------------------------------


async def chat(request: Request, parts: Parts, key: Caller) -> Response:
    return await _answer("chat", request, parts, key)


async def completion(request: Request, parts: Parts, key: Caller) -> Response:
    return await _answer("completion", request, parts, key)


async def no_responses(key: Caller) -> None:
    message = "this endpoint has no /v1/responses, which keeps conversations: use /v1/chat/completions"
    raise ApiError(404, message)


async def tokenize(request: Request, parts: Parts, key: Caller) -> Response:
    return await _tokens("tokenize", request, parts, key)


async def detokenize(request: Request, parts: Parts, key: Caller) -> Response:
    return await _tokens("detokenize", request, parts, key)


async def _tokens(way: TokensCall, request: Request, parts: EntranceState, key: ApiKey) -> Response:
    """As the engine reads the text, by its own template; all policies of a run have one tokenizer."""
    body = read_json(await request.body())
    if not isinstance(body, dict):
        raise ApiError(400, "the request must be a JSON object")
    parts.reserve(key, 0)
    parts.traffic.demand()
    try:
        async with asyncio.timeout(parts.args.request_s):
            reply = await parts.engines.tokens(way, {name: body[name] for name in TOKENS_FIELDS if name in body})
    except EngineGone:
        parts.lost()
        parts.traffic.demand()
        raise
    status = int(reply["status"])
    return JSONResponse(reply["body"] if status == 200 else _public(status, reply["body"]), status)


async def _answer(kind: Kind, request: Request, parts: EntranceState, key: ApiKey) -> Response:
    try:
        exchange, pieces, headers = await _let_in(kind, request, parts, key)
    except (ApiError, NotServed) as error:
        parts.metrics.refused(error.status_code if isinstance(error, ApiError) else error.status)
        raise
    return await exchange.reply(pieces, headers)


async def _let_in(
    kind: Kind, request: Request, parts: EntranceState, key: ApiKey
) -> tuple[Exchange, AsyncGenerator[Piece, None], dict[str, str]]:
    """Draws the policy once, here, and states it in headers before the first token is there."""
    call = parse(kind, read_json(await request.body()), request.headers.get(CONVERSATION), parts.most)
    parts.demand(key, parts.catalog.needed_scope(call.model))
    now_ms = parts.store.clock()
    policy = parts.catalog.choose(call.model, call.conversation, parts.args.seed, parts.draw_secret, now_ms=now_ms)
    stated = facts(parts.catalog, call.model, policy, key.scope) | {"conversation": call.conversation}
    if certificate := parts.catalog.certificate_of(call.model, policy):
        call = call.of_length(int(certificate.decoding["max_tokens"]), parts.most)
        other = "another chat template" if parts.args.chat_template else certificate.other_decoding(call.body)
        if other and parts.args.other_decoding == "refuse":
            raise ApiError(400, f"{other} is other decoding than is certified for {call.model!r}: leave it out")
        stated |= {"certificate": f"{NONE}: {other} is not what was tested"} if other else {}
    parts.traffic.demand()
    parts.reserve(key, call.reserve)
    certified = call.model == RELEASED and not str(stated["certificate"]).startswith(NONE)
    measured_as = answering_weights(parts.catalog, policy) if certified else ""
    span = parts.traces.begin(kind, request.headers)
    said = request.headers.get(CONSENT_HEADER)
    exchange = Exchange(parts, key, call, policy, stated, measured_as, span, said if kind == "chat" else "no")
    headers = {f"x-pddpo-{name.replace('_', '-')}": _header(value) for name, value in stated.items()}
    headers[CERTIFICATE] = " ".join(str(stated["certificate"]).split())
    return exchange, parts.engines.respond(kind, policy, call.body, span.traceparent), headers


def _header(value: object) -> str:
    """Headers hold ASCII; what is not there is `none`."""
    return "none" if value is None else quote(str(value), safe="-_.~:/@+ ")


class Exchange:
    """One request on its way: its deadline, its tokens, what is remembered and what is logged of it."""

    def __init__(
        self,
        parts: EntranceState,
        key: ApiKey,
        call: Call,
        policy: ServedPolicy,
        stated: dict[str, Any],
        measured_as: str,
        span: Span,
        consent: str | None,
    ) -> None:
        """`measured_as`: the weights of the answer, where it may be measured after it; else empty. `consent`: what the
        request says of training; conversations alone are kept."""
        self._measured_as, self._span, self._consent = measured_as, span, consent
        self._parts, self._key, self._call, self._policy, self._stated = parts, key, call, policy, stated
        self._began = time.monotonic()
        self._deadline = asyncio.get_running_loop().time() + parts.args.request_s
        self._id = ""
        self._answer = ""
        self._tokens = 0
        self._status = 500
        self._first_s: float | None = None
        parts.traffic.enter()

    async def reply(self, pieces: AsyncGenerator[Piece, None], headers: dict[str, str]) -> Response:
        streams = False
        try:
            first = await self._next(pieces)
            assert isinstance(first, dict)
            self._status = int(first["status"])
            streams = self._status == 200 and self._call.stream
            if streams:
                return Streamed(self, pieces, headers)
            ok = self._status == 200
            content = self._finished(first["body"]) if ok else _public(self._status, first["body"], self._call.id)
            return JSONResponse(content, self._status, headers=headers)
        except Exception as error:
            failure = self._failure("an answer", error)
            return error_reply(replace(failure, headers={**failure.headers, **headers}))
        finally:
            if not streams:
                await self.close(pieces)

    def _failure(self, what: str, error: Exception) -> Failure:
        """What a client is told of an error, and the status that the log has."""
        if isinstance(error, TimeoutError):
            failure = Failure(504, f"the request took longer than {self._parts.args.request_s:g} s")
        elif isinstance(error, EngineGone):
            self._parts.lost()
            message = f"the engine is gone, another one is being started; try again in {ENGINE_S} s"
            failure = Failure(503, message, headers={"Retry-After": str(ENGINE_S)})
        else:
            failure = Failure(500, hidden(what, error), "internal")
        self._status = failure.status
        return failure

    async def close(self, pieces: AsyncGenerator[Piece, None]) -> None:
        """The end of the exchange, also where the client has left: then the generation ends too."""
        self._parts.traffic.leave()
        self._end(self._status)
        await pieces.aclose()

    def _finished(self, body: dict[str, Any]) -> dict[str, Any]:
        self._count(body)
        self._id = str(body.get("id", ""))
        self._answer = _text(body)
        return {**body, "model": self._call.model, "pddpo": self._stated}

    async def events(self, pieces: AsyncGenerator[Piece, None]) -> AsyncIterator[str]:
        """Events as vLLM makes them, each with the `pddpo` field. What breaks ends with an error, never silently."""
        try:
            while (piece := await self._next(pieces)) is not None:
                for event in str(piece).split("\n\n"):
                    if changed := self._event(event):
                        yield changed + "\n\n"
        except Exception as error:
            failure = self._failure("a stream", error)
            yield _error_event(failure.status, failure.detail)

    def _event(self, event: str) -> str:
        data = event.removeprefix("data: ")
        if not data.startswith("{"):
            return event
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            return "data: " + json.dumps(_public(int(chunk["error"].get("code") or 500), chunk, self._call.id))
        self._count(chunk)
        self._id = str(chunk.get("id", ""))
        self._answer += _text(chunk)
        if not chunk.get("choices") and not self._call.wants_usage:
            return ""
        return "data: " + json.dumps({**chunk, "model": self._call.model, "pddpo": self._stated})

    async def _next(self, pieces: AsyncGenerator[Piece, None]) -> Piece | None:
        async with asyncio.timeout_at(self._deadline):
            piece = await anext(pieces, None)
        self._parts.traffic.heard()
        if self._first_s is None and not (isinstance(piece, dict) and self._call.stream):
            self._first_s = time.monotonic() - self._began
        return piece

    def _count(self, body: dict[str, Any]) -> None:
        self._tokens = int((body.get("usage") or {}).get("total_tokens", self._tokens))

    def _end(self, status: int) -> None:
        used = self._tokens if self._tokens or status != 200 else self._call.reserve
        self._parts.settle(self._key, self._call.reserve, used)
        if self._id and status == 200 and self._call.prompts == 1:
            reply = Reply(self._key.name, self._call.question, self._answer, self._policy, self._call.model)
            self._parts.remember(self._id, reply)
            self._parts.measured.offer(self._measured_as, Answer(self._call.question, self._answer))
            self._parts.kept.offer(self._key, self._consent, self._sent())
        seconds = time.monotonic() - self._began
        self._parts.metrics.answered(self._call.model, self._policy.round, status, self._tokens, self._first_s, seconds)
        self._span.end(
            **{
                "gen_ai.request.model": self._call.model,
                "gen_ai.usage.total_tokens": self._tokens,
                "http.response.status_code": status,
                "pddpo.request": self._call.id,
                "pddpo.round": self._policy.round,
                "pddpo.version": self._policy.version.number,
                "pddpo.first_piece_s": self._first_s,
            }
        )
        line = {"id": self._call.id, "key": self._key.name, "status": status, "tokens": self._tokens, **self._stated}
        line["round"] = self._policy.round
        line |= {"seconds": round(seconds, 3)}
        if self._parts.args.log_texts:
            line |= {"question": self._call.question, "answer": self._answer}
        # One line either way: a formatter for JSON writes the fields by themselves, one for text the message alone.
        logger.info("%s", "request" if self._parts.args.log_json else json.dumps(line, ensure_ascii=False), extra=line)

    def _sent(self) -> Sent | None:
        """The exchange as it may be kept; None where it is no conversation with a question at its end."""
        turns = turns_of(self._call.body.get("messages") or ())
        if turns is None:
            return None
        author = self._policy.version.number
        return Sent(self._key.name, self._call.user, turns, self._id, self._answer, author)


class Streamed(StreamingResponse):
    """A stream whose exchange is closed whatever becomes of it, even where the client left before its first event."""

    def __init__(self, exchange: Exchange, pieces: AsyncGenerator[Piece, None], headers: dict[str, str]) -> None:
        super().__init__(exchange.events(pieces), media_type="text/event-stream", headers=headers)
        self._exchange, self._pieces = exchange, pieces

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._exchange.close(self._pieces)


def _public(status: int, body: dict[str, Any], request: str = "") -> dict[str, Any]:
    """An engine's error in our form; what failed inside stays inside. The engine's log has the request's id too."""
    if status >= 500:
        return error_body(status, hidden(f"the engine, request {request}", body), "internal")
    return error_body(status, str((body.get("error") or body).get("message", "the engine refused the request")))


def _error_event(status: int, message: str) -> str:
    return f"data: {json.dumps(error_body(status, message))}\n\ndata: [DONE]\n\n"


def _text(body: dict[str, Any]) -> str:
    """The words of the first answer in a reply or in a chunk of one."""
    for choice in body.get("choices", ()):
        if choice.get("index", 0) == 0:
            message = choice.get("message") or choice.get("delta") or choice
            return str(message.get("content") or message.get("text") or "")
    return ""


# --- feedback and administration --------------------------------------------------------------------------------------


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FeedbackBody(Strict):
    """What a reader says about a reply: `id` is the reply's own."""

    id: str = Field(max_length=200)
    verdict: Literal["up", "down", "unsafe"]
    note: str = Field("", max_length=2000)


class WithdrawBody(Strict):
    """What to withdraw of what this key sent: the prompt of a reply, all of one of its users, or `all`."""

    id: str = Field("", max_length=200)
    user: str = Field("", max_length=200)
    all: bool = False


class ReleaseBody(Strict):
    """`hours`: a staged release, whose share of the conversations grows to the whole in that time."""

    round: int = Field(ge=1, le=2**31 - 1)
    reason: str = Field("", max_length=2000)
    force: bool = False
    hours: float | None = None


class RollbackBody(Strict):
    reason: str = Field("", max_length=2000)


async def give_feedback(body: FeedbackBody, parts: Parts, key: Caller) -> JSONResponse:
    """Puts the reply into the annotation queue: 201 when it is new there, 200 when it is there already."""
    parts.reserve(key, 0)
    reply = parts.reply(body.id, key)
    if reply is None:
        raise ApiError(
            404, f"there is no recent reply {body.id!r} to key {key.name!r}: it was not kept, or too long ago"
        )
    new = await asyncio.to_thread(verdicts.enqueue, parts.store, reply, body.id, body.verdict, body.note)
    kept = await parts.kept.judge(body.id, body.verdict)
    said = {"id": body.id, "verdict": body.verdict, "queued": new, "kept": kept}
    return JSONResponse(said, 201 if new else 200)


async def withdraw(body: WithdrawBody, parts: Parts, key: Caller) -> dict[str, Any]:
    """Takes back what the key sent: gone from what is kept, from the run's texts and from what later rounds learn."""
    parts.reserve(key, 0)
    if sum(map(bool, (body.id, body.user, body.all))) != 1:
        raise ApiError(400, "say one of id (a reply), user, or all: true")
    await parts.kept.settled()
    of_key = "" if key.scope is Scope.ADMIN and body.id else key.name
    mine = parts.reply(body.id, key) is not None or key.scope is Scope.ADMIN
    done = await asyncio.to_thread(
        take_back,
        parts.store,
        Path(parts.args.run),
        by=key.name,
        reply=body.id,
        key="" if body.id else key.name,
        user=body.user,
        within=of_key,
        question=mine,
    )
    parts.forget(body.id, key.name)
    return {"prompts": done.prompts, "answers": done.replies + done.samples, "questions": done.questions}


async def history(parts: Parts, key: Administrator) -> dict[str, Any]:
    """Every release, refusal and rollback, and what they come to."""
    lines = await asyncio.to_thread(parts.releases.history)
    return _served_now(parts) | {"history": [asdict(line) for line in lines]}


async def release(body: ReleaseBody, parts: Parts, key: Administrator) -> dict[str, Any]:
    """Releases a round by hand; it answers, or begins to, when this returns."""
    how: dict[str, Any] = {"by": key.name, "reason": body.reason, "force": body.force, "hours": body.hours}
    await asyncio.to_thread(parts.releases.release, body.round, **how)
    return await _taken_over(parts)


async def rollback(body: RollbackBody, parts: Parts, key: Administrator) -> dict[str, Any]:
    """Takes the released round back; the one before it answers when this returns."""
    await asyncio.to_thread(parts.releases.rollback, by=key.name, reason=body.reason)
    return await _taken_over(parts)


async def _taken_over(parts: EntranceState) -> dict[str, Any]:
    """What is served after a change. The change is journalled in any case."""
    try:
        await parts.look()
    except Exception as error:
        number = hidden("taking over a release", error)
        message = f"the change is in the journal, but the endpoint stays with round {parts.catalog.released}: {number}"
        raise ApiError(503, message) from error
    return _served_now(parts)


def _served_now(parts: EntranceState) -> dict[str, Any]:
    stage = parts.catalog.stage
    now: dict[str, Any] = {"released": parts.catalog.released}
    return now if stage is None else now | {"staged": stage.round, "share": stage.share(parts.store.clock())}
