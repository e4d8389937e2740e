"""One driver per run: a row that names the process, kept fresh by a heartbeat, taken over only from the dead."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal.database import now_ms, reading
from pddpo_ray.journal.schema import driver

HEARTBEAT_S = 10.0
STALE_S = 60.0
"""A driver on another host cannot be looked at; it counts as dead when it was silent for this long."""

_released_tokens: set[str] = set()
"""Tokens that this process let go. On a full disk their rows stay although nobody drives by them."""


def process_start(pid: int) -> str:
    """When a process of this machine began, in clock ticks since boot; empty if it is not there (or not on Linux).

    A process id is used again after a while: the pair of id and start names one process for good.
    """
    try:
        # The command name may hold spaces and brackets; the fields after its last bracket are plain.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def is_alive(pid: int, start: str) -> bool:
    """Whether that very process still runs on this machine."""
    if Path("/proc/self/stat").exists():
        return process_start(pid) == start != ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class DriverLock:
    """Held from construction to `release`. Raises UserError if a live driver holds the run."""

    def __init__(self, engine: Engine, run_id: str, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._engine = engine
        self._run = run_id
        self.token = uuid.uuid4().hex
        with engine.begin() as connection:
            self._take(connection)
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(heartbeat_s,), name=f"driver-{run_id}", daemon=True)
        self._thread.start()

    def _take(self, connection: Connection) -> None:
        holder = connection.execute(select(driver).where(driver.c.run == self._run).with_for_update()).first()
        host = socket.gethostname()
        if holder is not None:
            silent_s = (now_ms() - holder.seen_ms) / 1000
            if _drives(holder):
                raise UserError(
                    f"run {self._run} is driven by process {holder.pid} on {holder.host} (last seen {silent_s:.0f} s"
                    " ago): wait for it, or end that process first"
                )
            connection.execute(delete(driver).where(driver.c.run == self._run))
        pid = os.getpid()
        connection.execute(
            insert(driver).values(
                run=self._run, token=self.token, host=host, pid=pid, process_start=process_start(pid), seen_ms=now_ms()
            )
        )

    def _row_condition(self) -> ColumnElement[bool]:
        return and_(driver.c.run == self._run, driver.c.token == self.token)

    def _beat(self, every_s: float) -> None:
        while not self._stop_event.wait(every_s):
            try:
                with self._engine.begin() as connection:
                    connection.execute(update(driver).where(self._row_condition()).values(seen_ms=now_ms()))
            except DBAPIError:
                # A database that is away for a moment: the next write of the run says so if it stays away.
                continue

    def check(self, connection: Connection) -> None:
        """Inside a write transaction: nobody took the run over. Raises RunError."""
        if connection.execute(select(driver.c.run).where(self._row_condition())).first() is None:
            raise RunError(f"another driver took run {self._run} over; this process stops without writing")

    def release(self) -> None:
        self._stop_event.set()
        self._thread.join()
        _released_tokens.add(self.token)
        with self._engine.begin() as connection:
            connection.execute(delete(driver).where(self._row_condition()))


@dataclass(frozen=True)
class Driver:
    """A live process that drives a run."""

    host: str
    pid: int
    process_start: str

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def lives(self) -> bool:
        """Of a process on this machine."""
        return is_alive(self.pid, self.process_start)


def driver_of(engine: Engine, run_id: str) -> Driver | None:
    """The live process that drives the run at this moment, if there is one."""
    with reading(engine) as connection:
        holder = connection.execute(select(driver).where(driver.c.run == run_id)).first()
    return Driver(holder.host, holder.pid, holder.process_start) if holder is not None and _drives(holder) else None


def is_driven(engine: Engine, run_id: str) -> bool:
    """Whether a live process drives the run at this moment."""
    return driver_of(engine, run_id) is not None


def _drives(holder: Any) -> bool:
    """Whether the process of a row of `driver` is there; on another host, whether it was heard of lately."""
    if holder.token in _released_tokens:
        return False
    if holder.host == socket.gethostname():
        return is_alive(holder.pid, holder.process_start)
    return (now_ms() - holder.seen_ms) / 1000 < STALE_S
