"""The mailbox between the driver and a trainer group that outlives many fits.

Commands come one at a time. Every rank takes each command once and answers; a rank that was restarted in the middle
gets the unfinished command again, because commands are self-contained and give the same result every time.

    driver                      mailbox                     rank 0 ... n-1
    submit(7, fit)      ->      current = 7         <-      next(rank, done=6)   (long poll)
    result(7)  (long poll)              ...         <-      answer(7, rank, outcome)
               <- outcome of rank 0, when all ranks have answered

The class is plain asyncio; `actors.trainer_group` makes a Ray actor of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STOP = -1
"""Number of the command that ends the workers' loop."""


@dataclass(frozen=True)
class Worker:
    """One incarnation of a rank."""

    rank: int
    pid: int
    node: str


@dataclass(frozen=True)
class Outcome:
    """What a rank answers: a value, or an expected error with its class's name and one-line message."""

    value: Any = None
    error: str | None = None
    message: str = ""


class Mailbox:
    """One command at a time for `ranks` workers."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._workers: dict[int, Worker] = {}
        self._number = 0
        self._payload: Any = None
        self._outcomes: dict[int, Outcome] = {}
        self._is_stopped = False
        self._restarts = 0
        self._advances = 0
        self._lines: list[str] = []
        self._condition = asyncio.Condition()

    async def hello(self, worker: Worker) -> None:
        """A (new) incarnation of a rank is ready; what its predecessor answered to an unfinished command is void."""
        async with self._condition:
            if worker.rank in self._workers:
                self._restarts += 1
                if not self._is_complete:
                    self._outcomes.pop(worker.rank, None)
            self._workers[worker.rank] = worker
            self._condition.notify_all()

    async def workers(self) -> list[Worker]:
        return [self._workers[rank] for rank in sorted(self._workers)]

    async def waiting_for(self) -> list[int]:
        """Ranks that have not answered the current command."""
        return [rank for rank in range(self._ranks) if rank not in self._outcomes]

    async def ready(self, timeout_s: float) -> bool:
        """Wait until every rank has said hello."""
        return await self._wait(lambda: len(self._workers) == self._ranks, timeout_s)

    async def submit(self, number: int, payload: Any) -> None:
        """Hand out a command. The same number again is the same command and changes nothing."""
        async with self._condition:
            if number == self._number:
                return
            if number < self._number or not self._is_complete:
                raise RuntimeError(f"command {number} was submitted while {self._number} is the current one")
            self._number, self._payload, self._outcomes = number, payload, {}
            self._condition.notify_all()

    async def result(self, number: int, timeout_s: float) -> Outcome | None:
        """Outcome of rank 0 (or the first error) once every rank has answered; None if that takes longer."""
        await self._wait(lambda: self._number == number and self._is_settled, timeout_s)
        if self._number != number or not self._is_settled:
            return None
        errors = [outcome for _, outcome in sorted(self._outcomes.items()) if outcome.error]
        return errors[0] if errors else self._outcomes[0]

    async def next(self, worker: Worker, timeout_s: float) -> tuple[int, Any] | None:
        """The command that this worker has to do, (STOP, None) at the end, or None if there is none yet."""

        def has_work() -> bool:
            return self._is_stopped or (not self._is_complete and worker.rank not in self._outcomes)

        await self._wait(has_work, timeout_s)
        if self._is_stopped:
            return STOP, None
        return (self._number, self._payload) if has_work() else None

    async def answer(self, number: int, worker: Worker, outcome: Outcome) -> None:
        """Answers of earlier incarnations and to earlier commands are ignored."""
        async with self._condition:
            if number == self._number and self._workers.get(worker.rank) == worker:
                self._outcomes[worker.rank] = outcome
                self._condition.notify_all()

    async def advance(self) -> None:
        """A rank got further with its command."""
        self._advances += 1

    async def advances(self) -> int:
        """How often any rank got further."""
        return self._advances

    async def say(self, line: str) -> None:
        """A line of rank 0 about what it is doing."""
        self._lines.append(line)

    async def said(self) -> list[str]:
        """The lines since the last call."""
        lines, self._lines = self._lines, []
        return lines

    async def stop(self) -> None:
        async with self._condition:
            self._is_stopped = True
            self._condition.notify_all()

    async def restarts(self) -> int:
        """How many ranks were started again."""
        return self._restarts

    @property
    def _is_complete(self) -> bool:
        return self._number == 0 or len(self._outcomes) == self._ranks

    @property
    def _is_settled(self) -> bool:
        # One rank's error settles a command: the others may wait for that rank in a collective for ever.
        return self._is_complete or any(outcome.error for outcome in self._outcomes.values())

    async def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                async with self._condition:
                    await self._condition.wait_for(condition)
        except TimeoutError:
            return False
        return True
