"""Whether a request may come in: not while the endpoint stops, not while no engine lives, not more than fit.

The same rule for every way to stop (SIGTERM, Ctrl-C, `docker stop`, an evicted pod): new requests are refused with
`Retry-After`, those under way end by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from deploy.web.http_errors import ApiError

SOON_S, ENGINE_S, ELSEWHERE_S = 1, 5, 5
"""What `Retry-After` says while the endpoint is full, while an engine starts, and while this endpoint stops."""
HANGS_S = 5.0
"""Engines that have said nothing for so long are taken for gone."""


class Traffic:
    """Requests under way at one entrance, at most `most`. Time is passed in."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._last_heard_s = clock()
        self._is_engine_gone = False
        self.ongoing = 0
        self.stopping = False

    @property
    def refusal(self) -> tuple[str, int] | None:
        """Why a request would be refused now, and after how many seconds to try again."""
        if self.stopping:
            return "this endpoint is stopping", ELSEWHERE_S
        if self._is_engine_gone:
            return "no engine is there; one is being started", ENGINE_S
        if self.ongoing >= self._most:
            return f"{self.ongoing} requests are under way already", SOON_S
        return None

    @property
    def open(self) -> bool:
        """Whether an endpoint in this state is worth sending requests to."""
        return not self.stopping and not self._is_engine_gone

    def demand(self) -> None:
        """Raises ApiError 503 with the time to wait."""
        if self.refusal is not None:
            reason, seconds = self.refusal
            raise ApiError(503, f"{reason}; try again in {seconds} s", headers={"Retry-After": str(seconds)})

    def enter(self) -> None:
        self.demand()
        self.ongoing += 1

    def leave(self) -> None:
        self.ongoing -= 1

    def heard(self) -> None:
        """A piece of an answer came."""
        self._last_heard_s = self._clock()

    def came_back(self) -> None:
        """An engine says that it lives."""
        self._last_heard_s, self._is_engine_gone = self._clock(), False

    def lost(self) -> None:
        """An engine is known to be dead; until one is found again nothing is accepted."""
        self._is_engine_gone = True

    def silent(self) -> None:
        """An engine did not answer in time. That alone is no proof: others may be heard meanwhile."""
        if self._clock() - self._last_heard_s > HANGS_S:
            self._is_engine_gone = True
