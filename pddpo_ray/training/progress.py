"""How far this process's computations have come: a deadline looks at progress, not at how long a whole fit takes."""

from __future__ import annotations


class Progress:
    """Counts batches and optimiser steps that are done."""

    def __init__(self) -> None:
        self.steps = 0

    def advance(self) -> None:
        self.steps += 1


PROGRESS = Progress()
"""The one of this process; a rank reports it to whoever waits."""
