"""HTTP requests that are sent again while the other side is busy or out of reach."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

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
