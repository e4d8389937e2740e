"""Transactions of the queue: short, retried where two people meet, and committed together on SQLite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from pddpo_ray.journal.prepared import driver_cursor

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
    they queue here instead, in front of the database. One of them leads: it does what all that wait ask for in one
    transaction, so the disk is waited for once, while those who come meanwhile gather for the next.
    """

    def __init__(self, engine: Engine, run: str, clock: Clock = now_ms) -> None:
        self.engine = engine
        self.run = run
        self.clock = clock
        self.one_writer = engine.dialect.name == "sqlite"
        self._moved_on = threading.Condition()
        self._waiting: list[_Turn] = []
        self._led = False

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
        if not self.one_writer:
            with self.engine.begin() as connection:
                return work(connection)
        turn = _Turn(work)
        with self._moved_on:
            self._waiting.append(turn)
            self._moved_on.wait_for(lambda: turn.done or not self._led)
            if not turn.done:
                self._led = True
                turns, self._waiting = self._waiting, []
        if not turn.done:
            self._lead(turns)
        if turn.error is not None:
            raise turn.error
        return cast(Result, turn.result)

    def _lead(self, turns: list[_Turn]) -> None:
        try:
            with self.engine.begin() as connection:
                for turn in turns:
                    turn.take(connection, alone=len(turns) == 1)
        except BaseException as error:
            # Nothing was stored of any of them.
            for turn in turns:
                turn.error = turn.error or error
        with self._moved_on:
            for turn in turns:
                turn.done = True
            self._led = False
            self._moved_on.notify_all()


@dataclass(eq=False)
class _Turn:
    """One piece of work, done within a transaction that it may share with others."""

    work: Callable[[Connection], Any]
    result: Any = None
    error: BaseException | None = None
    done: bool = False

    def take(self, connection: Connection, *, alone: bool) -> None:
        """Does the work or leaves no trace of it; what others did in this transaction stays."""
        if alone:
            self.result = self.work(connection)
            return
        with driver_cursor(connection) as cursor:
            cursor.execute("SAVEPOINT turn")
            try:
                self.result = self.work(connection)
            except Exception as error:
                self.error = error
                # Raises where the failure ended the whole transaction (a full disk): then nobody's work was done.
                cursor.execute("ROLLBACK TO turn")
            cursor.execute("RELEASE turn")
