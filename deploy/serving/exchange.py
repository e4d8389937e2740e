"""One request on its way: its deadline, its tokens, what the reply states, what is remembered and what is logged of it.

An answer is whole, or it was broken off (the client left, or its time was up) or it failed. What was broken off is not
kept and nobody can rate it, and the key pays for what was drawn of it. Where it would have been measured it counts as
the best value: a user who leaves each stream that looks harmless must not choose what the alarm hears of.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from deploy.serving.app_state import EntranceState, Reply
from deploy.serving.engines.engine import EngineGone, Piece
from deploy.serving.requests import Call, error_body, error_reply
from deploy.serving.tracing import Span
from deploy.serving.traffic import ENGINE_S
from deploy.web.http_errors import ApiError, Failure, hidden
from pddpo_ray.certificates.certified import Certified
from pddpo_ray.journal.served import Sent
from pddpo_ray.limits.sources import Answer
from pddpo_ray.serving.alarms import answering_weights
from pddpo_ray.serving.catalog import NONE, RELEASED, ServedPolicy
from pddpo_ray.serving.keys import ApiKey

logger = logging.getLogger("deploy.serving")

CERTIFICATE = "x-pddpo-certificate"
STATED = ("run", "model", "round", "policy_version", "multiplier", "release", "certificate", "conversation", "clamped")
"""What `x-pddpo-…` headers say; the body's `pddpo` field says the same."""
LEFT, LATE = 499, 504
"""Statuses of what was broken off: the client left before the end, or the time was up."""


class Exchange:
    """`compare`, `begin` and then `reply`, each once. `facts`: what the reply says of its author; changed in place."""

    def __init__(
        self,
        parts: EntranceState,
        key: ApiKey,
        call: Call,
        policy: ServedPolicy,
        certificate: Certified | None,
        facts: dict[str, Any],
        consent: str,
    ) -> None:
        """`consent`: what the request says of training."""
        self._parts, self._key, self._call, self._policy, self._facts = parts, key, call, policy, facts
        self._certificate, self._consent = certificate, consent
        self._decoding = parts.decoding if certificate is None else certificate.decoding
        may_measure = certificate is not None and call.model == RELEASED
        self._measured_as = answering_weights(parts.catalog, policy) if may_measure else ""
        """The weights of an answer that may be measured; else empty."""
        self._start_s = time.monotonic()
        self._deadline = asyncio.get_running_loop().time() + parts.args.request_s
        self._span = Span(None)
        self._id = ""
        self._answer = ""
        self._tokens = 0
        self._token_counts: dict[int, tuple[int, int]] = {}
        """Of each answer of a stream the tokens of its prompt and its own so far."""
        self._status = LEFT
        self._first_s: float | None = None

    def compare(self) -> None:
        """Says in the reply how it will differ from what was tested. Raises ApiError 400 where that is not served."""
        if self._parts.args.chat_template:
            self._uncertify("another chat template")
        if departure := self._call.departure(self._decoding):
            self._depart(departure)

    def _depart(self, departure: str) -> None:
        """The answers will not be the policy's own: no training, certificate or measurement."""
        self._consent = "no"
        self._uncertify(departure)

    def _uncertify(self, reason: str) -> None:
        self._measured_as = ""
        if self._certificate is None:
            return
        if self._parts.args.other_decoding == "refuse":
            raise ApiError(400, f"{reason} is other decoding than is certified for {self._call.model!r}: leave it out")
        self._facts["certificate"] = f"{NONE}: {reason} is not what was tested"

    def begin(self, span: Span) -> None:
        """Takes its place among the requests under way. Raises ApiError 503 where there is none."""
        self._parts.traffic.enter()
        self._span = span

    async def reply(self) -> Response:
        pieces = self._parts.engines.respond(self._call.kind, self._policy, self._call.body, self._span.traceparent)
        streams = False
        try:
            first = await self._next(pieces)
            assert isinstance(first, dict)
            status = int(first["status"])
            room = int(first.get("room", self._call.most))
            if status == 200 and room < min(self._call.most, int(self._decoding["max_tokens"])):
                self._depart(f"an answer of at most {room} tokens, for which the prompt leaves room,")
            streams = status == 200 and self._call.stream
            if streams:
                return Streamed(self, pieces, self._headers())
            self._status = status
            if status == 200:
                content = self._finish_reply(first["body"])
            else:
                content = public_error(status, first["body"], self._call.id)
            return JSONResponse(content, status, headers=self._headers())
        except Exception as error:
            failure = self._failure("an answer", error)
            return error_reply(replace(failure, headers={**failure.headers, **self._headers()}))
        finally:
            if not streams:
                await self.close(pieces)

    def _headers(self) -> dict[str, str]:
        headers = {f"x-pddpo-{name.replace('_', '-')}": _header(value) for name, value in self._facts.items()}
        headers[CERTIFICATE] = " ".join(str(self._facts["certificate"]).split())
        return headers

    def _failure(self, subject: str, error: Exception) -> Failure:
        """What a client is told of an error, and the status that the log has."""
        if isinstance(error, TimeoutError):
            failure = Failure(LATE, f"the request took longer than {self._parts.args.request_s:g} s")
        elif isinstance(error, EngineGone):
            self._parts.lost()
            message = f"the engine is gone, another one is being started; try again in {ENGINE_S} s"
            failure = Failure(503, message, headers={"Retry-After": str(ENGINE_S)})
        elif isinstance(error, ApiError):
            failure = Failure(error.status_code, str(error.detail))
        else:
            failure = Failure(500, hidden(subject, error), "internal")
        self._status = failure.status
        return failure

    async def close(self, pieces: AsyncGenerator[Piece, None]) -> None:
        """The end of the exchange, also where the client has left: then the generation ends too."""
        self._parts.traffic.leave()
        self._end()
        await pieces.aclose()

    def _finish_reply(self, body: dict[str, Any]) -> dict[str, Any]:
        self._tokens = _total(body) or 0
        self._id = str(body.get("id", ""))
        self._answer = _text(body)
        return {**body, "model": self._call.model, "pddpo": self._facts}

    async def events(self, pieces: AsyncGenerator[Piece, None]) -> AsyncIterator[str]:
        """Events as vLLM makes them, each with the `pddpo` field. What breaks ends with an error, never silently."""
        try:
            while (piece := await self._next(pieces)) is not None:
                for event in str(piece).split("\n\n"):
                    if text := self._event(event):
                        yield text + "\n\n"
        except Exception as error:
            failure = self._failure("a stream", error)
            yield _error_event(failure.status, failure.detail)

    def _event(self, event: str) -> str:
        data = event.removeprefix("data: ")
        if not data.startswith("{"):
            # Everything that was said is on its way by now.
            self._status = 200 if data == "[DONE]" and self._status == LEFT else self._status
            return event
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            self._status = int(chunk["error"].get("code") or 500)
            return "data: " + json.dumps(public_error(self._status, chunk, self._call.id))
        self._count(chunk)
        self._id = str(chunk.get("id", ""))
        self._answer += _text(chunk)
        if not chunk.get("choices") and not self._call.wants_usage:
            return ""
        if chunk.get("choices") and not self._call.wants_counts:
            chunk.pop("usage", None)
        return "data: " + json.dumps({**chunk, "model": self._call.model, "pddpo": self._facts})

    async def _next(self, pieces: AsyncGenerator[Piece, None]) -> Piece | None:
        async with asyncio.timeout_at(self._deadline):
            piece = await anext(pieces, None)
        self._parts.traffic.heard()
        if self._first_s is None and not (isinstance(piece, dict) and self._call.stream):
            self._first_s = time.monotonic() - self._start_s
        return piece

    def _count(self, chunk: dict[str, Any]) -> None:
        """The last chunk has no answers and the sum of all tokens."""
        if not chunk.get("choices"):
            self._tokens = _total(chunk) or self._tokens
        usage = chunk.get("usage") or {}
        for choice in chunk.get("choices", ()):
            index = int(choice.get("index", 0))
            # An engine that counts at the end alone has drawn a token or more for each chunk.
            least = self._token_counts.get(index, (0, 0))[1] + 1
            self._token_counts[index] = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", least))

    def _paid_tokens(self) -> float:
        """Tokens that the key pays for: as the engine counted them, or as far as a broken-off stream came. A whole
        answer that nobody waited for is paid as reserved, since nobody counted it."""
        if self._tokens or self._status not in (200, LEFT, LATE):
            return self._tokens
        if self._status == 200 or not self._call.stream:
            return self._call.reserve
        prompts, answers = (sum(tokens[place] for tokens in self._token_counts.values()) for place in (0, 1))
        answers_each = max(1.0, len(self._token_counts) / self._call.prompts)
        return answers + (prompts / answers_each or self._call.prompt_tokens)

    def _end(self) -> None:
        status, cut_off = self._status, self._status in (LEFT, LATE)
        paid = self._paid_tokens()
        self._parts.settle(self._key, self._call.reserve, paid)
        if self._id and status == 200 and self._call.single:
            reply = Reply(self._key.name, self._call.question, self._answer, self._policy, self._call.model)
            self._parts.remember(self._id, reply)
            answer = Answer(self._call.question, self._answer)
            self._parts.measured.offer(self._measured_as, answer, self._key.name)
            self._parts.kept.offer(self._key, self._consent, self._sent())
        if cut_off:
            self._parts.metrics.broke_off()
            self._parts.measured.offer(self._measured_as, None)
        self._log(round(paid) if cut_off else self._tokens, cut_off)

    def _log(self, tokens: int, cut_off: bool) -> None:
        status, seconds = self._status, time.monotonic() - self._start_s
        self._parts.metrics.answered(self._call.model, self._policy.round, status, tokens, self._first_s, seconds)
        self._span.end(
            **{
                "gen_ai.request.model": self._call.model,
                "gen_ai.usage.total_tokens": tokens,
                "http.response.status_code": status,
                "pddpo.request": self._call.id,
                "pddpo.round": self._policy.round,
                "pddpo.version": self._policy.version.number,
                "pddpo.first_piece_s": self._first_s,
            }
        )
        line = {"id": self._call.id, "key": self._key.name, "status": status, "tokens": tokens, **self._facts}
        line |= {"round": self._policy.round, "seconds": round(seconds, 3), "cut_off": cut_off}
        if self._parts.args.log_texts:
            line |= {"question": self._call.question, "answer": self._answer}
        # One line either way: a formatter for JSON writes the fields by themselves, one for text the message alone.
        logger.info("%s", "request" if self._parts.args.log_json else json.dumps(line, ensure_ascii=False), extra=line)

    def _sent(self) -> Sent:
        """The exchange as it may be kept."""
        author = self._policy.version.number
        return Sent(self._key.name, self._call.user, self._call.turns, self._id, self._answer, author)


class Streamed(StreamingResponse):
    """A stream whose exchange is closed whatever becomes of it, even where the client left before its first event."""

    def __init__(self, exchange: Exchange, pieces: AsyncGenerator[Piece, None], headers: dict[str, str]) -> None:
        super().__init__(exchange.events(pieces), media_type="text/event-stream", headers=headers)
        self._exchange, self._pieces = exchange, pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._exchange.close(self._pieces)


def public_error(status: int, body: dict[str, Any], request: str = "") -> dict[str, Any]:
    """An engine's error in our form; what failed inside stays inside. The engine's log has the request's id too."""
    if status >= 500:
        return error_body(status, hidden(f"the engine, request {request}", body), "internal")
    return error_body(status, str((body.get("error") or body).get("message", "the engine refused the request")))


def _header(value: object) -> str:
    """Headers hold ASCII; what is not there is `none`."""
    return "none" if value is None else quote(str(value), safe="-_.~:/@+ ")


def _error_event(status: int, message: str) -> str:
    return f"data: {json.dumps(error_body(status, message))}\n\ndata: [DONE]\n\n"


def _total(body: dict[str, Any]) -> int | None:
    return (body.get("usage") or {}).get("total_tokens")


def _text(body: dict[str, Any]) -> str:
    """The words of the first answer in a reply or in a chunk of one."""
    for choice in body.get("choices", ()):
        if choice.get("index", 0) == 0:
            message = choice.get("message") or choice.get("delta") or choice
            return str(message.get("content") or message.get("text") or "")
    return ""
