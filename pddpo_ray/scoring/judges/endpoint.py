"""Questions to an OpenAI-compatible chat endpoint: many at a time, repeated where it is busy, failures counted.

What fails about one question (a filter, a length, an empty or cut reply) is `Lost` for that question, and the others
continue. What fails about the service (a wrong key, an unknown model, nobody there) ends everything with one error. A
status alone cannot tell the two apart, since servers answer 400 to a field that they do not know and 500 to a text that
they choke on. So where a service has never answered, cannot be reached, or left `IN_A_ROW` questions in a row without
an answer, it is asked something harmless in the same form: where that fails too, it is the service.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from pddpo_ray.config import EndpointConfig
from pddpo_ray.config.sections.judge import endpoint_settings
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.storage.whole_files import finite

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
BUSY = (408, 409, 425, 429)
OF_ONE_ITEM = (400, 413, 422, 451)
"""Statuses that may be about one text (a filter, a length). Asking again does not change them."""
NOBODY = (httpx.ConnectError, httpx.ConnectTimeout)
IN_A_ROW = 16
HARMLESS = "Say yes."

Outcome = httpx.Response | httpx.HTTPError
"""A reply, or why there is none."""


def send(
    request: Callable[[], httpx.Response],
    again: Callable[[Outcome], bool],
    *,
    tries: int,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """The first outcome that is not worth another try, or the last one.

    Pauses double from half a second to half a minute. A Retry-After header of the reply is obeyed, within that bound.
    """
    for attempt in range(tries):
        outcome: Outcome
        pause = FIRST_PAUSE_S * 2**attempt
        try:
            outcome = request()
        except httpx.HTTPError as error:
            outcome = error
        else:
            pause = _retry_seconds(outcome, pause)
        if attempt + 1 == tries or not again(outcome):
            return outcome
        sleep(min(pause, LONGEST_PAUSE_S))
    raise ValueError("a request needs at least one try")


def _retry_seconds(response: httpx.Response, otherwise: float) -> float:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return otherwise


def worth_another(status: int | None) -> bool:
    """Whether the same request may still find an answer; None: there was no reply."""
    return status is None or status >= 500 or status in BUSY


class Silence:
    """How many questions in a row a service left without an answer, told from many threads."""

    def __init__(self) -> None:
        self._lock, self._count, self.heard = threading.Lock(), 0, False

    def end(self) -> None:
        with self._lock:
            self._count, self.heard = 0, True

    def grow(self) -> int:
        with self._lock:
            self._count += 1
            return self._count


def kind_of_refusal(status: int, text: str) -> str:
    """Why a service refuses one text, in words that are counted; `text` is what it says."""
    message = text.lower()
    if status == 451 or re.search(r"filter|moderat|polic(?:y|ies)|flagged|safety|harm", message):
        return "stopped it by a filter"
    if status == 413 or re.search(r"context|too (?:long|large|many)|length|token", message):
        return "found it too long"
    return "refused it"


Turns = Sequence[tuple[str, str]]
"""A conversation as (role, content)."""


@dataclass(frozen=True)
class Lost:
    """No answer after all tries, and why: `KIND: what was said`."""

    reason: str
    final: bool = False
    """Whether the question itself is refused, so that asking again is no use."""

    @property
    def kind(self) -> str:
        return self.reason.partition(":")[0]


Fields = Mapping[str, str | None]
"""Request fields, and the role `system`, by their usual names: what they are called here; None: left out."""


class ChatEndpoint:
    """One model behind an endpoint. `asked` and `unanswered` count its questions since the start.

    `key` is sent as a bearer token and appears in no message.
    """

    def __init__(
        self, settings: EndpointConfig, key: str | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.settings = settings
        self._key = key
        self.asked = 0
        self.unanswered = 0
        self._sleep = sleep
        self._silence = Silence()
        self._service_error: str | None = None
        renamed: Fields = {str(name): called for name, called in settings.fields.items()}
        self._fields: Fields = {name: renamed.get(name, name) for name in OTHERWISE}

    @classmethod
    def stated(cls, where: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> ChatEndpoint:
        """The endpoint of a limit, a grader or `judge`. Raises UserError for a missing model or key."""
        settings = endpoint_settings(where, options)
        return cls(settings, key_of(where, settings.key_env, environment))

    def ask(self, questions: Sequence[tuple[str, str, int]]) -> list[str | Lost]:
        """Answers to (system, question, seed), as `converse`."""
        return self.converse([((("system", system), ("user", text)), seed) for system, text, seed in questions])

    def converse(self, questions: Sequence[tuple[Turns, int]]) -> list[str | Lost]:
        """Answers to conversations (role, content) with a seed each, in order; why there is none where one is lost.

        Raises RunError when the service refuses whatever it is asked (wrong key, unknown model), or is not there.
        """
        if not questions:
            return []
        self._service_error = None
        workers = min(self.settings.workers, len(questions))
        with client_of(self._key, self.settings.timeout, workers) as client, ThreadPoolExecutor(workers) as threads:
            replies = list(threads.map(lambda question: self._ask_question(client, *question), questions))
        self.asked += len(questions)
        self.unanswered += sum(isinstance(answer, Lost) for answer in replies)
        return replies

    def _ask_question(self, client: httpx.Client, turns: Turns, seed: int) -> str | Lost:
        if self._service_error is not None:  # another thread found out
            raise RunError(self._service_error)
        outcome = self._send_question(client, turns, seed)
        if status_of(outcome) == 200:
            self._silence.end()
        elif self._silence.grow() > IN_A_ROW or not self._silence.heard or isinstance(outcome, NOBODY):
            self._check_service(client, turns)
        return self._read_reply(outcome)

    def _check_service(self, client: httpx.Client, turns: Turns) -> None:
        """Asks something harmless in the form of a question. Raises RunError where that is not answered either."""
        outcome = self._send_question(client, [(role, HARMLESS) for role, _ in turns], 0)
        status = status_of(outcome)
        if status == 200:
            self._silence.end()
            return
        if worth_another(status):
            error = f"the judge at {self.settings.endpoint} does not answer: {error_of(outcome)}; start it, then resume"
        else:
            error = f"the judge at {self.settings.endpoint} refuses model {self.settings.model}: {error_of(outcome)}"
        if status in OF_ONE_ITEM:
            error += (
                "; a field that it does not know is named otherwise or left out by"
                " `fields: {max_tokens: max_completion_tokens, temperature: null}`"
            )
        if status in (404, 405):
            error += "; `endpoint` is its base URL, such as http://HOST/v1"
        self._service_error = error
        raise RunError(error)

    def _send_question(self, client: httpx.Client, turns: Turns, seed: int) -> Outcome:
        """A question's outcome. Until the service has answered once, a field that it refuses by name is renamed or left
        out, each once; the first form that is answered stays in use."""
        fields = self._fields
        outcome = self._post_question(client, turns, seed, fields)
        while (other := self._other_fields(fields, outcome)) is not None:
            fields = other
            outcome = self._post_question(client, turns, seed, fields)
        if status_of(outcome) == 200 and fields != self._fields:
            logger.warning(
                "the judge at %s does not take %s: they are named otherwise or left out; say so: fields: %s",
                self.settings.endpoint,
                " and ".join(name for name in fields if fields[name] != self._fields[name]),
                {name: alias for name, alias in fields.items() if name != alias},
            )
            self._fields = fields
        return outcome

    def _other_fields(self, fields: Fields, outcome: Outcome) -> Fields | None:
        """The fields to try next, renamed; None: nothing is left to try."""
        if not isinstance(outcome, httpx.Response) or outcome.status_code not in (400, 422):
            return None
        if self._silence.heard:  # perhaps since this was sent
            return self._fields if self._fields != fields else None
        for name, called in OTHERWISE.items():
            if fields[name] == name and re.search(rf"\b{name}\b", outcome.text, re.IGNORECASE):
                return {**fields, name: called}
        return None

    def _post_question(self, client: httpx.Client, turns: Turns, seed: int, fields: Fields) -> Outcome:
        # endpoints differ in how large a seed they take
        values = {
            "max_tokens": self.settings.max_tokens, "temperature": self.settings.temperature, "seed": seed % 2**31
        }  # fmt: skip
        body = {
            "model": self.settings.model,
            "messages": _messages(turns, fields["system"]),
            **{called: values[name] for name, called in fields.items() if called is not None and name in values},
        }
        url = f"{self.settings.endpoint.rstrip('/').removesuffix('/chat/completions')}/chat/completions"
        return send(
            lambda: client.post(url, content=json_of(body), headers=JSON),
            lambda outcome: worth_another(status_of(outcome)),
            tries=self.settings.tries,
            sleep=self._sleep,
        )

    def _read_reply(self, outcome: Outcome) -> str | Lost:
        status = status_of(outcome)
        if status != 200:
            message = error_of(outcome)
            kind = kind_of_refusal(status, message) if status in OF_ONE_ITEM else "did not answer"
            return Lost(f"{kind}: {message}", final=status in OF_ONE_ITEM)
        choice = _body(outcome)["choices"][0]
        content, end = _text(choice["message"].get("content")), choice.get("finish_reason")
        if end == "content_filter":
            return Lost("stopped it by a filter: its reply ends with content_filter", final=True)
        if end == "length":
            return Lost(f"was cut off: its reply ends at max_tokens, {self.settings.max_tokens}; raise it")
        if content.strip():
            return content
        if choice["message"].get("refusal"):
            return Lost(f"declined: {shortened(choice['message']['refusal'])}")
        return Lost(
            f"gave no content: its thoughts may have taken all of max_tokens, {self.settings.max_tokens}; raise it"
        )


OTHERWISE: Fields = {"max_tokens": "max_completion_tokens", "temperature": None, "seed": None, "system": None}
"""What a field or the role `system` becomes once refused by name; None: left out. The length stays limited."""
JSON = {"Content-Type": "application/json"}


def key_of(where: str, name: str | None, environment: Mapping[str, str]) -> str | None:
    """The key in the environment variable of that name, without white space around it. Raises UserError where it is not
    set, or is no key that a header could hold."""
    if name is None:
        return None
    key = environment.get(name, "").strip()
    if not key:
        raise UserError(f"{where}.key_env: the environment variable {name} is not set; put the key there")
    if not key.isascii() or not key.isprintable():
        raise UserError(f"{where}.key_env: {name} holds characters that no key has; copy the key anew")
    return key


def client_of(key: str | None, timeout_s: float, workers: int) -> httpx.Client:
    """A client that sends the key as a bearer token, with a connection for each worker: httpx itself stops at 100."""
    headers, limits = {} if key is None else {"Authorization": f"Bearer {key}"}, httpx.Limits(max_connections=workers)
    return httpx.Client(headers=headers, timeout=timeout_s, limits=limits)


def json_of(body: object) -> bytes:
    """A request's JSON. Half of a surrogate pair becomes a replacement character, NaN and infinity become null."""
    text = json.dumps(finite(body), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _messages(turns: Turns, system: str | None) -> list[dict[str, str]]:
    """The turns with `system` as the role's name; where it is None, that text begins the next turn."""
    messages, before = [], ""
    for role, content in turns:
        if role == "system" and system is None:
            before += f"{content}\n\n"
            continue
        messages.append({"role": str(system) if role == "system" else role, "content": before + content})
        before = ""
    return messages


def status_of(outcome: Outcome) -> int | None:
    """The status of a chat's reply; None: there was none. A reply with status 200 may hold an error with its own, and
    one that is no chat completion counts as a bad gateway's."""
    if isinstance(outcome, httpx.HTTPError):
        return None
    body = _body(outcome)
    if outcome.status_code != 200 or _is_completion(body):
        return outcome.status_code
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 502


def _body(outcome: Outcome) -> Any:
    try:
        return outcome.json() if isinstance(outcome, httpx.Response) else None
    except ValueError:
        return None


def _is_completion(body: Any) -> bool:
    try:
        return isinstance(body["choices"][0]["message"], dict)
    except (LookupError, TypeError):
        return False


def _text(content: Any) -> str:
    """A message's content as text; of content in parts, the text parts. Others, such as thoughts, are dropped."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def error_of(outcome: Outcome) -> str:
    """What is wrong, in one short line."""
    if isinstance(outcome, httpx.HTTPError):
        return f"{type(outcome).__name__}: {outcome}"
    body = _body(outcome)
    error = body.get("error", body) if isinstance(body, dict) else body
    text = error.get("message", error) if isinstance(error, dict) else error
    return f"{status_of(outcome)} {shortened(outcome.text if body is None else text)}"


def shortened(text: object) -> str:
    return " ".join(str(text).split())[:200]
