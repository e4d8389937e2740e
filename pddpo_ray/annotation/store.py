"""Transactions of the queue: short, retried where two people meet, and gathered at one gate on SQLite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

Result = TypeVar("Result")
Clock = Callable[[], int]

ATTEMPTS = 5
RETRIED_STATES = ("40001", "40P01")
"""PostgreSQL's serialization failure and deadlock: nothing happened, the same request may simply be made again."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Store:
    """The database of one run's queue and the clock it goes by.

    SQLite lets one writer in at a time and makes the others poll; with many threads that poll is unfair and slow, so
    they queue here instead, in front of the database.
    """

    def __init__(self, engine: Engine, run: str, clock: Clock = now_ms) -> None:
        self.engine = engine
        self.run = run
        self.clock = clock
        self.one_writer = engine.dialect.name == "sqlite"
        self._gate = threading.Lock() if self.one_writer else None

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` in one write transaction, committed to disk when this returns."""
        for attempt in range(ATTEMPTS):
            try:
                return self._once(work)
            except IntegrityError:
                # Two requests of one kind met (a key, a seat, an audit link): the second look sees the first's row.
                if attempt == ATTEMPTS - 1:
                    raise
            except DBAPIError as error:
                if attempt == ATTEMPTS - 1 or getattr(error.orig, "sqlstate", None) not in RETRIED_STATES:
                    raise
            time.sleep(0.002 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, work: Callable[[Connection], Result]) -> Result:
        if self._gate is None:
            with self.engine.begin() as connection:
                return work(connection)
        with self._gate, self.engine.begin() as connection:
            return work(connection)
