"""Transactions of the queue: short, retried where two people meet, and committed together on SQLite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from pddpo_ray.errors import UserError
from pddpo_ray.journal.database import driver_cursor, now_ms

Result = TypeVar("Result")
Clock = Callable[[], int]

ATTEMPTS = 5
RETRIED_STATES = ("40001", "40P01")
"""PostgreSQL's serialization failure and deadlock: nothing happened, the same request may simply be made again."""


class Store:
    """The database of one run's queue, and the clock that its times are read from.

    SQLite lets one writer in at a time and makes the others poll, which is unfair and slow with many threads. So the
    threads of a process wait here instead. One of them leads: it runs the work of all waiting threads in one
    transaction, with one flush to disk. Threads that arrive meanwhile form the next transaction.

    Ctrl-C meets the main thread alone, at any line, and a lead that it dropped would hold up all others. So the main
    thread has its writes done by another and only waits: what it gives up waiting for is stored whole, or not at all.
    """

    def __init__(self, engine: Engine, run: str, clock: Clock = now_ms) -> None:
        self.engine = engine
        self.run = run
        self.clock = clock
        self.one_writer = engine.dialect.name == "sqlite"
        self._door = threading.Lock()
        self._waiting: list[_Turn] = []
        self._has_leader = False
        self._main_executor = ThreadPoolExecutor(1, thread_name_prefix="queue-of-main")

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` in a write transaction, which is on disk when this returns. UserError where nobody may write."""
        for attempt in range(ATTEMPTS):
            try:
                return self._once(work)
            except IntegrityError:
                # Two requests wrote the same key, seat or audit link; the next attempt sees the row of the first.
                if attempt == ATTEMPTS - 1:
                    raise
            except DBAPIError as error:
                if getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_READONLY"):
                    name = self.engine.url.render_as_string(hide_password=True)
                    raise UserError(
                        f"journal {name} cannot be written: {error.orig}; check who may write there"
                    ) from error
                if attempt == ATTEMPTS - 1 or getattr(error.orig, "sqlstate", None) not in RETRIED_STATES:
                    raise
            time.sleep(0.002 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, work: Callable[[Connection], Result]) -> Result:
        if not self.one_writer:
            with self.engine.begin() as connection:
                return work(connection)
        if threading.current_thread() is threading.main_thread():
            return self._main_executor.submit(self._in_turn, work).result()
        return self._in_turn(work)

    def _in_turn(self, work: Callable[[Connection], Result]) -> Result:
        turn = _Turn(work)
        turn.called.acquire()
        with self._door:
            self._waiting.append(turn)
            turn.leads, self._has_leader = not self._has_leader, True
        if not turn.leads:
            turn.called.acquire()
        if turn.leads:
            self._lead()
        if turn.error is not None:
            raise turn.error
        return cast(Result, turn.result)

    def _lead(self) -> None:
        """Runs the work of all waiting threads, then hands the lead to one that arrived meanwhile."""
        with self._door:
            turns, self._waiting = self._waiting, []
        try:
            with self.engine.begin() as connection:
                for turn in turns:
                    turn.take(connection, alone=len(turns) == 1)
        except BaseException as error:
            # Nothing was stored of any of them.
            for turn in turns:
                turn.error = turn.error or error
        for turn in turns:
            turn.called.release()
        self._hand_on()

    def _hand_on(self) -> None:
        with self._door:
            self._has_leader = bool(self._waiting)
            if self._has_leader:
                self._waiting[0].leads = True
                self._waiting[0].called.release()


@dataclass(eq=False)
class _Turn:
    """One piece of work, done within a transaction that it may share with others."""

    work: Callable[[Connection], Any]
    called: threading.Lock = field(default_factory=threading.Lock)
    """Held until the work is done, or until its thread is to lead."""
    leads: bool = False
    """Whether its thread runs the work of all waiting threads, now or as soon as it is called."""
    result: Any = None
    error: BaseException | None = None

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
