"""How large a request may be, and how often one may come."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.web.http_errors import ApiError, Failure, Form

KEYS_MAX = 10_000


class BodyLimit:
    """Refuses large bodies before anything is parsed, whether or not the client states the length.

    `limit_of` gives the most bytes by path; `form` writes the refusal.
    """

    def __init__(self, app: ASGIApp, limit_of: Callable[[str], int], form: Form) -> None:
        self._app, self._limit_of, self._form = app, limit_of, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_of(scope["path"])
        message = f"a request has at most {limit} bytes"
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            await self._form(Failure(413, message))(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            chunk = await receive()
            size += len(chunk.get("body", b""))
            if size > limit:
                raise ApiError(413, message)
            return chunk

        await self._app(scope, counted, send)


class RateLimit:
    """Token buckets by key: `burst` requests at once, `per_second` in the long run. Time is passed in."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float], unit: str = "requests") -> None:
        self._per_second, self._burst, self._clock, self._unit = per_second, burst, clock, unit
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str, amount: float = 1.0) -> None:
        """One request, or `amount` of what is counted. Raises ApiError 429 with the time to wait."""
        with self._lock:
            now = self._clock()
            level, since = self._buckets.pop(key, (self._burst, now))
            level = min(self._burst, level + (now - since) * self._per_second)
            allowed = level >= amount
            self._buckets[key] = (level - amount if allowed else level, now)
            while len(self._buckets) > KEYS_MAX:
                self._buckets.popitem(last=False)
        if not allowed:
            wait = max(1, round((amount - level) / self._per_second))
            message = f"too many {self._unit}; try again in {wait} s"
            raise ApiError(429, message, headers={"Retry-After": str(wait)})

    def give_back(self, key: str, amount: float) -> None:
        """Returns what was taken and not used; below 0, takes more."""
        with self._lock:
            now = self._clock()
            level, since = self._buckets.pop(key, (self._burst, now))
            level += (now - since) * self._per_second + amount
            self._buckets[key] = (min(self._burst, level), now)
