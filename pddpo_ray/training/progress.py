"""How far this process's computations have come: a deadline looks at progress, not at how long a whole fit takes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

TELL_EVERY_S = 10.0
"""Seconds between two lines about the same work."""


class LinePace:
    """When long work logs its next line; short work logs none."""

    def __init__(self) -> None:
        self._last_line_time = time.monotonic()

    def due(self) -> bool:
        """Whether `TELL_EVERY_S` have passed since the beginning, or since this last was true."""
        now = time.monotonic()
        if now - self._last_line_time < TELL_EVERY_S:
            return False
        self._last_line_time = now
        return True


class Progress:
    """Counts finished batches and optimiser steps, and passes on the lines of long work."""

    def __init__(self) -> None:
        self.steps = 0
        self.listener: Callable[[str], None] | None = None
        """Receives the lines; None: the log of this process."""

    def tell(self, line: str) -> None:
        """One line about the work that is being done."""
        if self.listener is None:
            logger.info("%s", line)
        else:
            self.listener(line)

    def advance(self) -> None:
        self.steps += 1


PROGRESS = Progress()
"""The one of this process; a rank reports it to the process that waits."""
