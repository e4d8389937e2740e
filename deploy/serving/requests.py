"""From a client's JSON to what an engine is asked: known fields only, every number bounded.

Errors have the form that OpenAI clients read: {"error": {message, type, param, code}}.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
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
NO_TOOLS = "none"
"""A client that names tools and forbids to call them asks for plain text."""

ANSWERS_MAX = 8
PROMPTS_MAX = 64
USER_MAX = 200
LOGPROBS_MAX = 20
DEPTH_MAX = 32
"""Objects and lists inside each other: deeper ones only cost time and stack, here and in the engine."""
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
    prompts: int
    """How many prompts it asks about: more than one in a list for completions."""
    length_given: bool
    """Whether the client said how long an answer may be."""
    user: str = ""
    """Whom the application names as its user."""

    def of_length(self, tokens: int, most: int) -> Call:
        """The same request with an answer of at most so many tokens, unless it says itself how long."""
        return self if self.length_given else replace(self, body={**self.body, "max_tokens": min(tokens, most)})


def read_json(text: bytes) -> Any:
    """What a client sent. Raises ApiError 400 where it is no JSON or has too many levels."""
    try:
        body = json.loads(text)
    except ValueError:
        raise ApiError(400, "the request is not JSON") from None
    except RecursionError:
        body = None
    else:
        level: list[Any] = [body]
        for _ in range(DEPTH_MAX):
            level = [inner for each in level for inner in _inside(each)]
        if not level:
            return body
    raise ApiError(400, f"the request has objects or lists inside each other more than {DEPTH_MAX} levels deep")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def parse(kind: Kind, body: Any, conversation: str | None, max_tokens: int) -> Call:
    """Raises ApiError 400 naming the field that is wrong. `conversation` comes from the header, if there is one."""
    if not isinstance(body, dict):
        raise ApiError(400, "the request must be a JSON object")
    if body.get("tool_choice") == NO_TOOLS:
        body = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
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
    texts = _texts(kind, asked)
    question = "\n".join(texts)
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
        reserve=len(texts) * answers * tokens + len(question) / BYTES_PER_TOKEN,
        question=question,
        prompts=len(texts),
        length_given=length_given,
        user=str(asked.get("user") or "")[:USER_MAX],
    )


def _tokens(kind: Kind, asked: dict[str, Any], most: int) -> int:
    """Longest answer; what is not given is filled in, so that no request is without a bound."""
    name = "max_completion_tokens" if "max_completion_tokens" in asked else "max_tokens"
    default = most if kind == "chat" else min(16, most)
    # Evaluation harnesses ask for the log-probabilities of the prompt alone.
    least = 0 if kind == "completion" and asked.get("echo") is True else 1
    asked[name] = _bounded(asked, name, least, most, default)
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


def _texts(kind: Kind, asked: Mapping[str, Any]) -> list[str]:
    """The text of each prompt; token ids are written as numbers."""
    if kind == "completion":
        return [each if isinstance(each, str) else " ".join(str(token) for token in each) for each in _prompts(asked)]
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise ApiError(400, "messages must be a list of objects with role and content")
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(not isinstance(part, dict) or "text" not in part for part in content):
            raise ApiError(400, "messages: this model reads text alone; a part of a message is something else")
    return [text_of(messages)]


def _prompts(asked: Mapping[str, Any]) -> list[str | list[int]]:
    """One text or one list of token ids, or a list of several of either."""
    given = asked.get("prompt")
    several: list[Any] = given if isinstance(given, list) and given and not _is_ids(given) else [given]
    texts = all(isinstance(each, str) and each for each in several)
    if not texts and not all(_is_ids(each) for each in several):
        raise ApiError(400, "prompt must be a text, a list of token ids, or a list of texts or of lists of token ids")
    if len(several) > PROMPTS_MAX:
        raise ApiError(
            400, f"prompt has {len(several)} entries, at most {PROMPTS_MAX} are answered at once: send several requests"
        )
    return several


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in value)
    )


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
