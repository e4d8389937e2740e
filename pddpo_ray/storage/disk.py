"""A full disk is one clear message: what was finished is kept, and the run goes on when there is room."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import OperationalError

from pddpo_ray.errors import RunError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Turns what file systems and SQLite say about a full disk into a RunError that says what to do."""
    try:
        yield
    except (OSError, OperationalError) as error:
        if not is_full(error):
            raise
        raise RunError(
            f"no space is left for {path}: make room and go on with --resume, finished phases are kept"
        ) from error


def is_full(error: BaseException) -> bool:
    """Whether an error, or one that caused it, says that a disk or a quota is full."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    if isinstance(error, OperationalError) and "disk is full" in str(error.orig):
        return True
    return error.__cause__ is not None and is_full(error.__cause__)
