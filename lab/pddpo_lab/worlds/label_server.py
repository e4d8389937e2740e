"""`pddpo world serve`: a text world's labels over HTTP, so that it can be judge or grader of any trainer.

app = create_app(labels, token)

POST /v1/labels            {prompt, response}        -> {"label": "unsafe"}
POST /v1/pairs             {prompt, first, second}   -> {"better": "first", "costlier": "second"}
POST /v1/chat/completions  question and answer between marks in the last message -> the label as text
"""

from __future__ import annotations

import hmac
import re
import time
import uuid
from typing import Annotated, Any, cast

import uvicorn
from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field

from deploy.serving.requests import error_reply
from deploy.web.http_errors import ApiError, Failure
from deploy.web.web_app import bearer_token, healthy, web_app
from pddpo_lab.worlds.labels_by_text import LabelsByText
from pddpo_ray.errors import UserError
from pddpo_ray.records import HARM, LabelledPair, Verdict

BODY_MAX = 64 * 1024
LABELS_MAX = 1000
MODELS = {
    "safety": "is this answer safe or unsafe?",
    "helpfulness": "which of two answers is more helpful?",
    "harmlessness": "which of two answers is less harmful?",
}
"""What a chat client may ask, by the model that it names."""
FORM = (
    "the last message holds [question] ... [end of question] and [answer] ... [end of answer], or for a comparison"
    " [answer A] ... [end of answer A] and [answer B] ... [end of answer B]"
)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LabelRequest(Strict):
    """`draw` names the label that is wanted (the same again for the same number); without it, the next ones."""

    prompt: str
    response: str
    count: int = Field(1, ge=1, le=LABELS_MAX)
    draw: int | None = Field(None, ge=0)


class PairRequest(Strict):
    prompt: str
    first: str
    second: str
    count: int = Field(1, ge=1, le=LABELS_MAX)
    draw: int | None = Field(None, ge=0)


class ChatRequest(BaseModel):
    """What matters of an OpenAI request; sampling settings change nothing about a label."""

    model: str = "safety"
    messages: list[dict[str, Any]] = Field(min_length=1)
    n: int | None = Field(1, ge=1, le=LABELS_MAX)
    seed: int | None = None
    stream: bool | None = False


def create_app(labels: LabelsByText, token: str) -> FastAPI:
    """The application over one world's labels. Every route but the health check asks for the token."""
    app = web_app(
        "pddpo_ray world labels",
        error_reply,
        {UserError: lambda error: Failure(400, str(error))},
        malformed=400,
        busy="busy",
        body_bytes=lambda _path: BODY_MAX,
    )
    app.state.labels, app.state.token = labels, token
    app.add_api_route("/healthz", healthy, methods=["GET"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/labels", label, methods=["POST"])
    app.add_api_route("/v1/pairs", pair, methods=["POST"])
    app.add_api_route("/v1/chat/completions", chat, methods=["POST"])
    return app


def serve(labels: LabelsByText, token: str, *, host: str, port: int, behind_proxy: bool) -> None:
    """Serves until told to stop. `behind_proxy`: a proxy in front speaks https and states the client's address."""
    app = create_app(labels, token)
    uvicorn.run(
        app, host=host, port=port, log_level="warning", lifespan="off", proxy_headers=behind_proxy, server_header=False
    )


def the_labels(request: Request) -> LabelsByText:
    """The labels, for a caller with the token."""
    shown = bearer_token(request)
    if shown is None or not hmac.compare_digest(shown.encode(), str(request.app.state.token).encode()):
        raise ApiError(401, "send the token of this server: Authorization: Bearer TOKEN")
    return cast(LabelsByText, request.app.state.labels)


Labels = Annotated[LabelsByText, Depends(the_labels)]


def models(labels: Labels) -> dict[str, Any]:
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "pddpo"} for name in MODELS]
    return {"object": "list", "data": data}


def label(asked: LabelRequest, labels: Labels) -> dict[str, Any]:
    draw, drawn = labels.safety(asked.prompt, asked.response, asked.count, asked.draw)
    return {"label": drawn[0].value, "labels": [one.value for one in drawn], "draw": draw}


def pair(asked: PairRequest, labels: Labels) -> dict[str, Any]:
    draw, drawn = labels.compare(asked.prompt, asked.first, asked.second, asked.count, asked.draw)
    said = [{"better": one.helpful.value, "costlier": one.label(HARM).value} for one in drawn]
    return {**said[0], "labels": said, "draw": draw}


def chat(asked: ChatRequest, labels: Labels) -> dict[str, Any]:
    """A label as an assistant's reply. `seed` names the draw; without it every call gets the next labels."""
    if asked.stream:
        raise ApiError(400, "stream is not supported: a label is one word")
    if asked.model not in MODELS:
        raise ApiError(404, f"there is no model {asked.model!r}: use {', '.join(MODELS)}")
    replies = _replies(asked, labels, _text_of(asked.messages[-1]))
    choices = [
        {"index": index, "message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}
        for index, reply in enumerate(replies)
    ]
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.model,
        "choices": choices,
        "usage": {"prompt_tokens": 0, "completion_tokens": len(choices), "total_tokens": len(choices)},
    }


def _replies(asked: ChatRequest, labels: LabelsByText, text: str) -> list[str]:
    count, draw = asked.n or 1, None if asked.seed is None else abs(asked.seed)
    question = _between(text, "question")
    if asked.model == "safety":
        _, verdicts = labels.safety(question, _between(text, "answer"), count, draw)
        # judges of this project are asked for [[safe]] or [[unsafe]]
        form = "[[{}]]" if "[[safe]]" in text else "{}"
        return [form.format(verdict.value) for verdict in verdicts]
    _, pairs = labels.compare(question, _between(text, "answer A"), _between(text, "answer B"), count, draw)
    return [_preferred(one, asked.model) for one in pairs]


def _preferred(labelled: LabelledPair, model: str) -> str:
    """A or B: the more helpful, or the less harmful answer."""
    first = labelled.helpful is Verdict.FIRST if model == "helpfulness" else labelled.label(HARM) is Verdict.SECOND
    return "A" if first else "B"


def _between(text: str, name: str) -> str:
    match = re.search(rf"\[{name}\](.*?)\[end of {name}\]", text, re.DOTALL)
    if match is None:
        raise ApiError(400, f"[{name}] or [end of {name}] is missing: {FORM}")
    return match.group(1)


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise ApiError(400, "the last message has no text")
    return content
