"""Questions to an OpenAI-compatible chat endpoint: many at a time, repeated where it is busy, failures counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from pddpo_ray.config import EndpointConfig
from pddpo_ray.errors import RunError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0

Outcome = httpx.Response | httpx.HTTPError
"""A reply, or why there is none."""


def send(
    request: Callable[[], httpx.Response],
    worth_another: Callable[[Outcome], bool],
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
            pause = _stated_seconds(outcome, pause)
        if attempt + 1 == tries or not worth_another(outcome):
            return outcome
        sleep(min(pause, LONGEST_PAUSE_S))
    raise ValueError("a request needs at least one try")


def _stated_seconds(response: httpx.Response, otherwise: float) -> float:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return otherwise


REFUSED = (400, 401, 403, 404, 405, 422)
"""Answers that a repetition does not change."""

Turns = Sequence[tuple[str, str]]
"""A conversation as (role, content)."""


@dataclass(frozen=True)
class Lost:
    """No answer after all tries, and why."""

    reason: str


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

    def ask(self, questions: Sequence[tuple[str, str, int]]) -> list[str | None]:
        """Answers to (system, question, seed), in order; None where there is none after all tries.

        Raises RunError when the endpoint refuses (wrong key, unknown model) or answers no question at all.
        """
        replies = self.converse([((("system", system), ("user", text)), seed) for system, text, seed in questions])
        lost = [answer for answer in replies if isinstance(answer, Lost)]
        if lost and len(lost) == len(questions):
            raise RunError(
                f"the judge at {self.settings.endpoint} answered none of {len(questions)} questions: {lost[0].reason};"
                " start it, then resume"
            )
        return [None if isinstance(answer, Lost) else answer for answer in replies]

    def converse(self, questions: Sequence[tuple[Turns, int]]) -> list[str | Lost]:
        """Answers to conversations (role, content) with a seed each, in order; why there is none where one is lost.

        Raises RunError when the endpoint refuses (wrong key, unknown model).
        """
        if not questions:
            return []
        with self._client() as client, ThreadPoolExecutor(min(self.settings.workers, len(questions))) as threads:
            replies = list(threads.map(lambda question: self._one(client, *question), questions))
        self.asked += len(questions)
        self.unanswered += sum(isinstance(answer, Lost) for answer in replies)
        return replies

    def _client(self) -> httpx.Client:
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        limits = httpx.Limits(max_connections=self.settings.workers)
        return httpx.Client(headers=headers, timeout=self.settings.request_timeout_s, limits=limits)

    def _one(self, client: httpx.Client, turns: Turns, seed: int) -> str | Lost:
        body = {
            "model": self.settings.model,
            "messages": [{"role": role, "content": content} for role, content in turns],
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_tokens,
            # endpoints differ in how large a seed they take
            "seed": seed % 2**31,
        }
        url = f"{self.settings.endpoint.rstrip('/')}/chat/completions"
        outcome = send(lambda: client.post(url, json=body), _unanswered, tries=self.settings.tries, sleep=self._sleep)
        if isinstance(outcome, httpx.HTTPError):
            return Lost(f"{type(outcome).__name__}: {outcome}")
        reason = f"{outcome.status_code} {_message(outcome)}"
        if outcome.status_code in REFUSED:
            raise RunError(f"the judge at {self.settings.endpoint} refuses model {self.settings.model}: {reason}")
        answer = _content(outcome)
        return Lost(reason) if answer is None else answer


def _unanswered(outcome: Outcome) -> bool:
    """Whether the same question may still find an answer."""
    if isinstance(outcome, httpx.HTTPError):
        return True
    return outcome.status_code not in REFUSED and _content(outcome) is None


def _content(response: httpx.Response) -> str | None:
    """Text of the first choice; None where the reply is none or has another form."""
    if response.status_code != 200:
        return None
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        return None
    return content if isinstance(content, str) else None


def _message(response: httpx.Response) -> str:
    """What the endpoint says is wrong, in one short line."""
    try:
        body: Any = response.json()
        said = body.get("error", body) if isinstance(body, dict) else body
        text = str(said.get("message", said) if isinstance(said, dict) else said)
    except ValueError:
        text = response.text
    return " ".join(text.split())[:200]
