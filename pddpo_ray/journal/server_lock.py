"""One annotation server per SQLite database: a lock of the operating system, held while the server lives."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

from pddpo_ray.errors import UserError


def served_at(database: str) -> str | None:
    """The address at which a server of this SQLite file says it is; None where none serves it, or nobody can tell."""
    path = Path(f"{database}.serving")
    if "://" in database or not path.is_file():
        return None
    with path.open() as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock_file.read().strip().rpartition(" at ")[2] or None
    return None


@contextmanager
def sole_server(engine: Engine, address: str) -> Iterator[None]:
    """Holds the database for one server while the block lasts; PostgreSQL may have many.

    The lock is the operating system's: it ends with the process, however that ends. Raises UserError if another server
    holds it, with that one's address.
    """
    file = engine.url.database
    if engine.dialect.name != "sqlite" or not file or file == ":memory:":
        yield
        return
    path = Path(f"{file}.serving")
    with path.open("a+") as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock_file.seek(0)
            raise UserError(
                f"{file} is served already ({lock_file.read().strip() or 'by another process'}): SQLite has one server;"
                " use its page, end it, or keep the journal in PostgreSQL"
            ) from error
        lock_file.truncate(0)
        lock_file.write(f"process {os.getpid()} at {address}\n")
        lock_file.flush()
        yield
