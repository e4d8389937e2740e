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
from dataclasses import asdict
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

from fastapi import Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from deploy.serving import verdicts
from deploy.serving.engine import Kind, Piece
from deploy.serving.entrance import EntranceState, Reply
from deploy.serving.requests import KNOWN, Call, error_body, error_reply, parse
from deploy.web.http_errors import ApiError, Failure, hidden
from deploy.web.web_app import address, bearer_token, healthy, web_app
from pddpo_ray.serving.catalog import NONE, ServedPolicy, facts, needed_scope
from pddpo_ray.serving.keys import ApiKey, Scope

logger = logging.getLogger("deploy.serving")

CONVERSATION, CERTIFICATE = "x-conversation-id", "x-pddpo-certificate"
STATED = ("run", "model", "round", "policy_version", "multiplier", "release", "certificate")
"""What `x-pddpo-…` headers say; the body's `pddpo` field says the same."""


def create_app(state: EntranceState) -> FastAPI:
    """The application over one state; its lifespan follows the run."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(state.follow())
        try:
            yield
        finally:
            following.cancel()

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
    app.add_api_route("/healthz", healthy, methods=["GET"])
    app.add_api_route("/readyz", ready, methods=["GET"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/models/{name}", model, methods=["GET"])
    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", completion, methods=["POST"], response_model=None)
    app.add_api_route("/v1/feedback", give_feedback, methods=["POST"])
    app.add_api_route("/admin/releases", history, methods=["GET"])
    app.add_api_route("/admin/release", release, methods=["POST"])
    app.add_api_route("/admin/rollback", rollback, methods=["POST"])
    if state.args.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(state.args.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", CONVERSATION],
            expose_headers=[f"x-pddpo-{name.replace('_', '-')}" for name in (*STATED, "conversation")],
        )
    return app


def state_of(request: Request) -> EntranceState:
    return cast(EntranceState, request.app.state.entrance)


Parts = Annotated[EntranceState, Depends(state_of)]


def caller(request: Request, parts: Parts) -> ApiKey:
    """The key of the request; every route but the two health checks asks for one."""
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
        raise ApiError(503, "no engine is ready")
    return {"ok": True}


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


async def _answer(kind: Kind, request: Request, parts: EntranceState, key: ApiKey) -> Response:
    """Draws the policy once, here, and states it in headers before the first token is there."""
    try:
        body = await request.json()
    except ValueError:
        raise ApiError(400, "the request is not JSON") from None
    call = parse(kind, body, request.headers.get(CONVERSATION), parts.most)
    parts.demand(key, needed_scope(call.model))
    policy = parts.catalog.choose(call.model, call.conversation, parts.args.seed)
    stated = facts(parts.catalog, call.model, policy) | {"conversation": call.conversation}
    if certificate := parts.catalog.certificate_of(call.model, policy):
        call = call.of_length(int(certificate.decoding["max_tokens"]), parts.most)
        other = "another chat template" if parts.args.chat_template else certificate.other_decoding(call.body)
        if other and parts.args.other_decoding == "refuse":
            raise ApiError(400, f"{other} is other decoding than is certified for {call.model!r}: leave it out")
        stated |= {"certificate": f"{NONE}: {other} is not what was tested"} if other else {}
    parts.reserve(key, call.reserve)
    exchange = Exchange(parts, key, call, policy, stated)
    headers = {f"x-pddpo-{name.replace('_', '-')}": _header(value) for name, value in stated.items()}
    headers[CERTIFICATE] = " ".join(str(stated["certificate"]).split())
    return await exchange.reply(parts.engines.respond(kind, policy, call.body), headers)


def _header(value: object) -> str:
    """Headers hold ASCII; what is not there is `none`."""
    return "none" if value is None else quote(str(value), safe="-_.~:/@+ ")


class Exchange:
    """One request on its way: its deadline, its tokens, what is remembered and what is logged of it."""

    def __init__(
        self, parts: EntranceState, key: ApiKey, call: Call, policy: ServedPolicy, stated: dict[str, Any]
    ) -> None:
        self._parts, self._key, self._call, self._policy, self._stated = parts, key, call, policy, stated
        self._began = time.monotonic()
        self._deadline = asyncio.get_running_loop().time() + parts.args.request_s
        self._id = ""
        self._answer = ""
        self._tokens = 0

    async def reply(self, pieces: AsyncGenerator[Piece, None], headers: dict[str, str]) -> Response:
        status = 500
        try:
            first = await self._next(pieces)
            assert isinstance(first, dict)
            status = int(first["status"])
            if status == 200 and self._call.stream:
                return StreamingResponse(self._stream(pieces), media_type="text/event-stream", headers=headers)
            content = self._finished(first["body"]) if status == 200 else _public(status, first["body"])
            return JSONResponse(content, status, headers=headers)
        except TimeoutError:
            status = 504
            return error_reply(Failure(504, self._too_long(), headers=headers))
        except Exception as error:
            return error_reply(Failure(500, hidden("an answer", error), "internal", headers=headers))
        finally:
            if status != 200 or not self._call.stream:
                await pieces.aclose()
                self._end(status)

    def _finished(self, body: dict[str, Any]) -> dict[str, Any]:
        self._count(body)
        self._id = str(body.get("id", ""))
        self._answer = _text(body)
        return {**body, "model": self._call.model, "pddpo": self._stated}

    async def _stream(self, pieces: AsyncGenerator[Piece, None]) -> AsyncIterator[str]:
        """Events as vLLM makes them, each with the `pddpo` field. What breaks ends with an error, never silently."""
        status = 200
        try:
            while (piece := await self._next(pieces)) is not None:
                for event in str(piece).split("\n\n"):
                    if changed := self._event(event):
                        yield changed + "\n\n"
        except TimeoutError:
            status = 504
            yield _error_event(504, self._too_long())
        except Exception as error:
            status = 500
            yield _error_event(500, hidden("a stream", error))
        finally:
            # Also when the client has left: then the generation ends too.
            await pieces.aclose()
            self._end(status)

    def _event(self, event: str) -> str:
        data = event.removeprefix("data: ")
        if not data.startswith("{"):
            return event
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            return "data: " + json.dumps(_public(int(chunk["error"].get("code") or 500), chunk))
        self._count(chunk)
        self._id = str(chunk.get("id", ""))
        self._answer += _text(chunk)
        if not chunk.get("choices") and not self._call.wants_usage:
            return ""
        return "data: " + json.dumps({**chunk, "model": self._call.model, "pddpo": self._stated})

    async def _next(self, pieces: AsyncGenerator[Piece, None]) -> Piece | None:
        async with asyncio.timeout_at(self._deadline):
            return await anext(pieces, None)

    def _count(self, body: dict[str, Any]) -> None:
        self._tokens = int((body.get("usage") or {}).get("total_tokens", self._tokens))

    def _too_long(self) -> str:
        return f"the request took longer than {self._parts.args.request_s:g} s"

    def _end(self, status: int) -> None:
        used = self._tokens if self._tokens or status != 200 else self._call.reserve
        self._parts.settle(self._key, self._call.reserve, used)
        if self._id and status == 200:
            reply = Reply(self._key.name, self._call.question, self._answer, self._policy, self._call.model)
            self._parts.remember(self._id, reply)
        line = {"id": self._call.id, "key": self._key.name, "status": status, "tokens": self._tokens, **self._stated}
        line |= {"seconds": round(time.monotonic() - self._began, 3)}
        if self._parts.args.log_texts:
            line |= {"question": self._call.question, "answer": self._answer}
        logger.info("%s", json.dumps(line, ensure_ascii=False))


def _public(status: int, body: dict[str, Any]) -> dict[str, Any]:
    """An engine's error; what failed inside stays inside."""
    return body if status < 500 else error_body(status, hidden("the engine", body), "internal")


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


class ReleaseBody(Strict):
    round: int = Field(ge=1, le=2**31 - 1)
    reason: str = Field("", max_length=2000)
    force: bool = False


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
    return JSONResponse({"id": body.id, "verdict": body.verdict, "queued": new}, 201 if new else 200)


async def history(parts: Parts, key: Administrator) -> dict[str, Any]:
    """Every release, refusal and rollback, and what they come to."""
    lines = await asyncio.to_thread(parts.releases.history)
    return {"released": parts.catalog.released, "history": [asdict(line) for line in lines]}


async def release(body: ReleaseBody, parts: Parts, key: Administrator) -> dict[str, Any]:
    """Releases a round by hand; it answers when this returns."""
    await asyncio.to_thread(parts.releases.release, body.round, by=key.name, reason=body.reason, force=body.force)
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
    return {"released": parts.catalog.released}
