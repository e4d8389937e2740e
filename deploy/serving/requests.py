"""From a client's JSON to what an engine is asked: known fields only (`request_fields`), every number bounded.

Errors have the form that OpenAI clients read: {"error": {message, type, param, code}}.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi.responses import JSONResponse

from deploy.serving.request_fields import Kind, departure, read, shortened
from deploy.web.http_errors import ApiError, Failure
from pddpo_ray.errors import UserError
from pddpo_ray.records import Message
from pddpo_ray.serving.catalog import RELEASED, NotServed, conversation_of, text_of

PROMPTS_MAX = 64
USER_MAX = 200
LENGTHS = {"max_tokens", "max_completion_tokens"}
TOOL = "tool"
ROLES = ("system", "user", "assistant", TOOL)
TYPES_OF_TEXT = ("text", "message")
"""What lm-eval and clients of other routes write beside a message that is one anyway."""
ALIASES = {"developer": "system"}
"""Other names of roles, as OpenAI's newer models have them."""
NO_TOOLS = "none"
"""A client that names tools and forbids to call them asks for plain text."""
DEPTH_MAX = 32
"""Objects and lists inside each other: deeper ones only cost time and stack, here and in the engine."""
BYTES_PER_TOKEN = 3
"""Rough, for the reservation alone: what was really used is settled afterwards."""


@dataclass(frozen=True)
class Call:
    """One request. `reserve` is the most tokens that it can use, about; `question` is its text."""

    kind: Kind
    id: str
    model: str
    conversation: str
    body: dict[str, Any]
    """What the engine is asked."""
    fields: Mapping[str, Any]
    """Of it the fields that the client gave."""
    turns: tuple[Message, ...]
    """The conversation; empty for a completion."""
    untested: str | None
    """What in its messages makes another prompt than any that was tested."""
    stream: bool
    wants_usage: bool
    wants_counts: bool
    """Whether every event of a stream counts tokens, as the client asked."""
    most: int
    """Tokens of an answer at most."""
    clamped: str | None
    """The length that the client asked for and does not get, in words."""
    reserve: float
    question: str
    prompts: int
    """How many it asks about: more than one in a list for completions."""
    user: str = ""
    """Whom the application names as its user."""

    @property
    def single(self) -> bool:
        """Whether the reply is one answer and nothing else, so that a verdict about it is about that answer."""
        return self.prompts == 1 and self.body.get("n", 1) == 1 and not self.body.get("echo")

    @property
    def prompt_tokens(self) -> float:
        """Of its prompts, estimated."""
        return len(self.question) / BYTES_PER_TOKEN

    def departure(self, decoding: Mapping[str, Any]) -> str | None:
        """What makes another answer of it than this decoding, by which the policy was tested; None: nothing."""
        shorter = f"max_tokens={self.most}" if self.most < decoding["max_tokens"] else None
        return self.untested or departure(self.kind, self.fields, decoding) or shorter

    def of_length(self, tokens: int) -> Call:
        """The same request with an answer of at most `tokens` tokens, unless it states a length."""
        if not LENGTHS.isdisjoint(self.fields):
            return self
        most = min(tokens, self.most)
        return replace(self, body={**self.body, "max_tokens": most}, most=most)


def read_json(text: bytes) -> Any:
    """What a client sent. Raises ApiError 400 where it is no JSON or has too many levels."""
    try:
        body = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "the request holds half of a surrogate pair, which is no text") from None
    except ValueError:
        raise ApiError(400, "the request is not JSON") from None
    except RecursionError:
        body = None
    else:
        level: list[Any] = [body]
        for _ in range(DEPTH_MAX):
            level = [inner for value in level for inner in _inner_values(value)]
        if not level:
            return body
    raise ApiError(400, f"the request has objects or lists inside each other more than {DEPTH_MAX} levels deep")


def _refuse_constant(name: str) -> Any:
    """NaN and Infinity are Python's, not JSON's."""
    raise ValueError(name)


def _inner_values(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def parse(kind: Kind, body: Any, conversation: str | None, most: int, control: Sequence[str] = ()) -> Call:
    """Raises ApiError 400 naming the field that is wrong. `conversation` comes from the header, if there is one; `most`
    is the longest answer in tokens; `control`: texts by which the model's template begins and ends turns."""
    if not isinstance(body, dict):
        raise ApiError(400, "the request must be a JSON object")
    if kind == "chat" and body.get("tool_choice") == NO_TOOLS:
        body = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    model = body.get("model") or RELEASED
    if not isinstance(model, str):
        raise ApiError(400, "model must be a string")
    conversation_id = conversation or body.get("conversation_id")
    if conversation_id is not None and not (isinstance(conversation_id, str) and 0 < len(conversation_id) <= 200):
        raise ApiError(400, "conversation_id must be a string of at most 200 characters")
    request = read(kind, body)
    untested: str | None = None
    if kind == "chat":
        request["messages"], untested = read_messages(request.get("messages"), control)
    texts = [text_of(request["messages"])] if kind == "chat" else _texts(request)
    name, tokens, clamped = _length(kind, request, most)
    fields = dict(request)
    request[name] = tokens
    question = "\n".join(texts)
    stream = request.get("stream") is True
    if stream:
        # Asked of the engine in any case: the key pays for what was drawn, also of an answer that is broken off.
        request["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    id_ = uuid.uuid4().hex
    return Call(
        kind=kind,
        id=id_,
        model=model,
        conversation=conversation_of(conversation_id, request.get("seed"), _opening(request, question)),
        body={**request, "request_id": id_},
        fields=fields,
        turns=tuple(Message(message["role"], message["content"]) for message in request.get("messages", ())),
        untested=untested,
        stream=stream,
        wants_usage=bool(options.get("include_usage")),
        wants_counts=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        most=tokens,
        clamped=clamped,
        reserve=len(texts) * request.get("n", 1) * tokens + len(question) / BYTES_PER_TOKEN,
        question=question,
        prompts=len(texts),
        user=str(request.get("user") or "")[:USER_MAX],
    )


def _length(kind: Kind, request: dict[str, Any], most: int) -> tuple[str, int, str | None]:
    """The field with the answer's length, the tokens allowed, and in words a length that was cut. A request without one
    gets the API's default, so that every answer is bounded."""
    name = "max_completion_tokens" if "max_completion_tokens" in request else "max_tokens"
    if name != "max_tokens":
        request.pop("max_tokens", None)  # as the engine has it
    if name not in request:
        return name, most if kind == "chat" else min(16, most), None
    tokens = int(request[name])
    # Evaluation harnesses ask for the log-probabilities of the prompt alone.
    least = 0 if kind == "completion" and request.get("echo") else 1
    if tokens < least:
        raise ApiError(400, f"{name} must be a whole number from {least} to {most}, not {tokens}")
    request[name] = min(tokens, most)
    return name, request[name], f"{name}: {most} in place of {tokens}" if tokens > most else None


def read_messages(value: Any, control: Sequence[str]) -> tuple[list[dict[str, Any]], str | None]:
    """A conversation as the engine, the limits' sources and training all read it, and what in it makes another prompt
    than any that was tested (in ASCII). Raises ApiError 400 naming a message."""
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise ApiError(400, "messages must be a list of objects with role and content")
    messages, untested = [], None
    for number, message in enumerate(value):
        role = ALIASES.get(str(message.get("role")), message.get("role"))
        if role not in ROLES:
            roles = ", ".join((*ROLES, *ALIASES))
            raise ApiError(400, f"messages[{number}]: the role {shortened(role)} is none of {roles}")
        content = _content(message.get("content"))
        extras = {name: entry for name, entry in message.items() if name not in ("role", "content") and entry}
        if extras.get("type") in TYPES_OF_TEXT:
            extras.pop("type")
        messages.append({"role": role, "content": content, **extras})
        if extras or role == TOOL:
            untested = untested or f"messages[{number}] with {shortened(next(iter(extras), TOOL))}"
        if mark := next((mark for mark in control if mark in content), None):
            untested = untested or f"messages[{number}] with the control token {shortened(mark)}"
    if messages[-1]["role"] != "user":
        untested = untested or f"a last message of role {messages[-1]['role']}"
    return messages, untested


def _content(value: Any) -> str:
    """One text; parts are joined as vLLM joins them."""
    parts = value if isinstance(value, list) else [{"text": "" if value is None else value}]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type", "text") == "text"]
    words = [text for text in texts if isinstance(text, str)]
    if len(words) < len(parts):
        raise ApiError(400, "messages: this model reads text alone; a part of a message is something else")
    return "\n".join(words)


def _opening(request: Mapping[str, Any], question: str) -> str:
    """What stays the same while a conversation grows: everything up to the first message of its user."""
    messages = request.get("messages")
    if not messages:
        return question
    first = next((index for index, message in enumerate(messages) if message.get("role") == "user"), 0)
    return text_of(messages[: first + 1])


def _texts(request: Mapping[str, Any]) -> list[str]:
    """The text of each prompt of a completion; token ids are written as numbers."""
    return [
        prompt if isinstance(prompt, str) else " ".join(str(token) for token in prompt) for prompt in _prompts(request)
    ]


def _prompts(request: Mapping[str, Any]) -> list[str | list[int]]:
    """One text or one list of token ids, or a list of several of either."""
    prompt = request.get("prompt")
    prompts: list[Any] = prompt if isinstance(prompt, list) and prompt and not _is_ids(prompt) else [prompt]
    texts = all(isinstance(entry, str) and entry for entry in prompts)
    if not texts and not all(_is_ids(entry) for entry in prompts):
        raise ApiError(400, "prompt must be a text, a list of token ids, or a list of texts or of lists of token ids")
    if len(prompts) > PROMPTS_MAX:
        raise ApiError(
            400, f"prompt has {len(prompts)} entries, at most {PROMPTS_MAX} are answered at once: send several requests"
        )
    return prompts


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
