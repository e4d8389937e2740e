"""The entrance as a FastAPI application: keys and limits, the draw of a round, and what every reply states.

app = create_app(state)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from fastapi import Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field

from deploy.serving import verdicts
from deploy.serving.app_state import EntranceState
from deploy.serving.engines.engine import TOKENS_FIELDS, EngineGone, TokensCall
from deploy.serving.exchange import STATED, Exchange, public_error
from deploy.serving.kept_prompts import CONSENT_HEADER
from deploy.serving.request_fields import Kind
from deploy.serving.requests import KNOWN, error_reply, parse, read_json
from deploy.serving.traffic import SOON_S
from deploy.web.http_errors import ApiError, hidden
from deploy.web.web_app import address, bearer_token, healthy, web_app
from pddpo_ray import __version__
from pddpo_ray.driver.withdrawal import take_back
from pddpo_ray.serving.catalog import NotServed, facts
from pddpo_ray.serving.keys import ApiKey, Scope

CONVERSATION = "x-conversation-id"


def create_app(state: EntranceState) -> FastAPI:
    """The application over one state; its lifespan follows the run."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (state.follow(), state.watch(), state.measured.work(), state.kept.work())
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
            expose_headers=[f"x-pddpo-{name.replace('_', '-')}" for name in STATED],
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


async def _tokens(call: TokensCall, request: Request, parts: EntranceState, key: ApiKey) -> Response:
    """As the engine reads the text, by its own template; all policies of a run have one tokenizer."""
    body = read_json(await request.body())
    if not isinstance(body, dict):
        raise ApiError(400, "the request must be a JSON object")
    parts.reserve(key, 0)
    parts.traffic.demand()
    try:
        async with asyncio.timeout(parts.args.request_s):
            reply = await parts.engines.tokens(call, {name: body[name] for name in TOKENS_FIELDS if name in body})
    except EngineGone:
        parts.lost()
        parts.traffic.demand()
        raise
    status = int(reply["status"])
    return JSONResponse(reply["body"] if status == 200 else public_error(status, reply["body"]), status)


async def _answer(kind: Kind, request: Request, parts: EntranceState, key: ApiKey) -> Response:
    try:
        exchange = await _let_in(kind, request, parts, key)
    except (ApiError, NotServed) as error:
        parts.metrics.refused(error.status_code if isinstance(error, ApiError) else error.status)
        raise
    return await exchange.reply()


async def _let_in(kind: Kind, request: Request, parts: EntranceState, key: ApiKey) -> Exchange:
    """Draws the policy, notes departures from what was tested, and reserves tokens."""
    call = parse(kind, read_json(await request.body()), request.headers.get(CONVERSATION), parts.most, parts.control)
    parts.demand(key, parts.catalog.needed_scope(call.model))
    now_ms = parts.store.clock()
    policy = parts.catalog.choose(call.model, call.conversation, parts.args.seed, parts.draw_secret, now_ms=now_ms)
    reply_facts = facts(parts.catalog, call.model, policy, key.scope) | {"conversation": call.conversation}
    reply_facts |= {"clamped": call.clamped} if call.clamped else {}
    certificate = parts.catalog.certificate_of(call.model, policy)
    call = call if certificate is None else call.of_length(int(certificate.decoding["max_tokens"]))
    consent = ",".join(request.headers.getlist(CONSENT_HEADER))
    exchange = Exchange(parts, key, call, policy, certificate, reply_facts, consent)
    exchange.compare()
    parts.traffic.demand()
    parts.reserve(key, call.reserve)
    exchange.begin(parts.traces.begin(kind, request.headers))
    return exchange


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
    is_new = await asyncio.to_thread(verdicts.enqueue, parts.store, reply, body.id, body.verdict, body.note)
    is_kept = await parts.kept.judge(body.id, body.verdict)
    content = {"id": body.id, "verdict": body.verdict, "queued": is_new, "kept": is_kept}
    return JSONResponse(content, 201 if is_new else 200)


async def withdraw(body: WithdrawBody, parts: Parts, key: Caller) -> dict[str, Any]:
    """Takes back what the key sent: gone from what is kept, from the run's texts and from what later rounds learn."""
    parts.reserve(key, 0)
    if sum(map(bool, (body.id, body.user, body.all))) != 1:
        raise ApiError(400, "say one of id (a reply), user, or all: true")
    await parts.kept.settled()
    of_key = "" if key.scope is Scope.ADMIN and body.id else key.name
    may_erase = parts.reply(body.id, key) is not None or key.scope is Scope.ADMIN
    counts = await asyncio.to_thread(
        take_back,
        parts.store,
        Path(parts.args.run),
        by=key.name,
        reply=body.id,
        key="" if body.id else key.name,
        user=body.user,
        within=of_key,
        question=may_erase,
    )
    parts.forget(body.id, key.name)
    return {"prompts": counts.prompts, "answers": counts.replies + counts.samples, "questions": counts.questions}


async def history(parts: Parts, key: Administrator) -> dict[str, Any]:
    """Every release and rollback, and what they come to."""
    lines = await asyncio.to_thread(parts.releases.history)
    return _serving_state(parts) | {"history": [asdict(line) for line in lines]}


async def release(body: ReleaseBody, parts: Parts, key: Administrator) -> dict[str, Any]:
    """Releases a round by hand; it answers, or begins to, when this returns."""
    arguments: dict[str, Any] = {"by": key.name, "reason": body.reason, "force": body.force, "hours": body.hours}
    await asyncio.to_thread(parts.releases.release, body.round, **arguments)
    return await _take_over(parts)


async def rollback(body: RollbackBody, parts: Parts, key: Administrator) -> dict[str, Any]:
    """Takes the released round back; the one before it answers when this returns."""
    await asyncio.to_thread(parts.releases.rollback, by=key.name, reason=body.reason)
    return await _take_over(parts)


async def _take_over(parts: EntranceState) -> dict[str, Any]:
    """What is served after a change. The change is journalled in any case."""
    try:
        await parts.look()
    except Exception as error:
        number = hidden("taking over a release", error)
        message = f"the change is in the journal, but the endpoint stays with round {parts.catalog.released}: {number}"
        raise ApiError(503, message) from error
    return _serving_state(parts)


def _serving_state(parts: EntranceState) -> dict[str, Any]:
    stage = parts.catalog.stage
    summary: dict[str, Any] = {"released": parts.catalog.released}
    return summary if stage is None else summary | {"staged": stage.round, "share": stage.share(parts.store.clock())}
