"""From a client's JSON to what an engine is asked: known fields only, every number bounded.

Errors have the form that OpenAI clients read: {"error": {message, type, param, code}}.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastapi.responses import JSONResponse

from deploy.serving.engine import Kind
from deploy.web.http_errors import ApiError, Failure
from pddpo_ray.errors import UserError
from pddpo_ray.serving.catalog import RELEASED, NotServed, conversation_of, text_of

COMMON = frozenset(
    {
        *("model", "user", "n", "seed", "stop", "stop_token_ids", "stream", "max_tokens", "min_tokens", "ignore_eos"),
        *("temperature", "top_p", "top_k", "min_p", "logit_bias"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty"),
    }
)
FIELDS: Mapping[str, frozenset[str]] = {
    "chat": COMMON | {"messages", "max_completion_tokens", "logprobs", "top_logprobs", "response_format"},
    "completion": COMMON | {"prompt", "echo", "logprobs"},
}
"""What reaches the engine; other fields are ignored, as OpenAI's own clients expect, but for those refused below."""
REFUSED = ("tools", "functions", "tool_choice", "audio", "suffix", "best_of", "prompt_embeds")
"""To ignore these would answer another question than the one that was asked."""

ANSWERS_MAX = 8
LOGPROBS_MAX = 20
BYTES_PER_TOKEN = 3
"""Rough, for the reservation alone: what was really used is settled afterwards."""


@dataclass(frozen=True)
class Call:
    """One request. `reserve` is the most tokens that it can use, about; `question` is its text."""

    id: str
    model: str
    conversation: str
    body: dict[str, Any]
    stream: bool
    wants_usage: bool
    reserve: float
    question: str
    length_given: bool
    """Whether the client said how long an answer may be."""

    def of_length(self, tokens: int, most: int) -> Call:
        """The same request with an answer of at most so many tokens, unless it says itself how long."""
        return self if self.length_given else replace(self, body={**self.body, "max_tokens": min(tokens, most)})


def parse(kind: Kind, body: Any, conversation: str | None, max_tokens: int) -> Call:
    """Raises ApiError 400 naming the field that is wrong. `conversation` comes from the header, if there is one."""
    if not isinstance(body, dict):
        raise ApiError(400, "the request must be a JSON object")
    for name in REFUSED:
        if body.get(name):
            raise ApiError(400, f"{name} is not supported by this endpoint: leave it out")
    model = body.get("model") or RELEASED
    if not isinstance(model, str):
        raise ApiError(400, "model must be a string")
    named = conversation or body.get("conversation_id")
    if named is not None and not (isinstance(named, str) and 0 < len(named) <= 200):
        raise ApiError(400, "conversation_id must be a string of at most 200 characters")
    asked = {name: value for name, value in body.items() if name in FIELDS[kind] and value is not None}
    answers = _bounded(asked, "n", 1, ANSWERS_MAX, 1)
    for name in ("logprobs", "top_logprobs"):
        if not isinstance(asked.get(name), bool):
            _bounded(asked, name, 0, LOGPROBS_MAX, 0)
    length_given = not {"max_tokens", "max_completion_tokens"}.isdisjoint(asked)
    tokens = _tokens(kind, asked, max_tokens)
    question = _question(kind, asked)
    stream = asked.get("stream") is True
    if stream:
        # Asked of the engine in any case, because the key's tokens are counted by it.
        asked["stream_options"] = {"include_usage": True}
    options = body.get("stream_options")
    id_ = uuid.uuid4().hex
    return Call(
        id=id_,
        model=model,
        conversation=conversation_of(named, _seed(asked), _opening(asked, question)),
        body={**asked, "request_id": id_},
        stream=stream,
        wants_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        reserve=answers * tokens + len(question) / BYTES_PER_TOKEN,
        question=question,
        length_given=length_given,
    )


def _tokens(kind: Kind, asked: dict[str, Any], most: int) -> int:
    """Longest answer; what is not given is filled in, so that no request is without a bound."""
    name = "max_completion_tokens" if "max_completion_tokens" in asked else "max_tokens"
    default = most if kind == "chat" else min(16, most)
    asked[name] = _bounded(asked, name, 1, most, default)
    return int(asked[name])


def _bounded(asked: Mapping[str, Any], name: str, low: int, high: int, default: int) -> int:
    value = asked.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ApiError(400, f"{name} must be a whole number from {low} to {high}, not {value!r}")
    return value


def _seed(asked: Mapping[str, Any]) -> int | None:
    seed = asked.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ApiError(400, f"seed must be a whole number, not {seed!r}")
    return seed


def _opening(asked: Mapping[str, Any], question: str) -> str:
    """What stays the same while a conversation grows: everything up to the first message of its user."""
    messages = asked.get("messages")
    if not messages:
        return question
    first = next((index for index, each in enumerate(messages) if each.get("role") == "user"), 0)
    return text_of(messages[: first + 1])


def _question(kind: Kind, asked: Mapping[str, Any]) -> str:
    """The request's text."""
    if kind == "completion":
        prompt = asked.get("prompt")
        several = isinstance(prompt, list) and any(not isinstance(token, int) for token in prompt)
        if not prompt or several:
            raise ApiError(400, "prompt must be one text or one list of token ids")
        return prompt if isinstance(prompt, str) else " ".join(str(token) for token in prompt)
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise ApiError(400, "messages must be a list of objects with role and content")
    return text_of(messages)


TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

KNOWN: Mapping[type[Exception], Callable[[Any], Failure]] = {
    NotServed: lambda error: Failure(error.status, str(error), error.code),
    UserError: lambda error: Failure(409, str(error), "conflict"),
}


def error_body(status: int, message: str, code: str = "") -> dict[str, Any]:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or kind}}


def error_reply(failure: Failure) -> JSONResponse:
    message = f"{failure.detail}; {failure.hint}" if failure.hint else failure.detail
    return JSONResponse(
        error_body(failure.status, message, failure.code), failure.status, headers=dict(failure.headers)
    )
