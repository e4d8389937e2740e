"""Trackers that get the numbers of every round: TensorBoard, Weights & Biases, MLflow, or an installed package's.

A tracker that fails is logged once; the run continues without it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pddpo_ray.driver.run import Event, RoundFinished
from pddpo_ray.errors import PddpoError
from pddpo_ray.registry import checked, code_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker knows of a run before its first round."""

    folder: Path
    """The run folder; it may not be there yet, and a run that is refused leaves nothing in it."""
    name: str
    recipe: Mapping[str, Any]
    """The resolved recipe as plain values."""


class RoundLog(Protocol):
    """An opened tracker. Nothing is written before the first round."""

    def write_round(self, round_: int, metrics: Mapping[str, float], /) -> None:
        """All metrics of a finished round, by name (`dual/multiplier`); some may not be finite. After a crash the
        rounds that were not finished come again."""
        ...

    def close(self) -> None: ...


class Told:
    """A `progress` of `run_recipe`: tells a tracker the rounds of the run itself, not of its offline comparison."""

    def __init__(self, tracker: str, log: RoundLog, run: str) -> None:
        self._tracker, self._run = tracker, run
        self._log: RoundLog | None = log

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundFinished) and event.run == self._run and self._log is not None:
            try:
                self._log.write_round(event.round, event.metrics)
            except (PddpoError, OSError):
                raise
            except Exception as error:
                logger.warning(
                    "tracker %s failed in round %d and gets no further numbers: %s: %s",
                    self._tracker, event.round, type(error).__name__, error,
                )  # fmt: skip
                self._log = None

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def opened(name: str, settings: Mapping[str, Any], run: TrackedRun) -> Told:
    """The tracker of that name. Raises UserError where its package is broken, ModuleNotFoundError where an extra that
    brings its library is missing."""
    tracker_settings = checked("trackers", name, settings, f"report.trackers.{name}")
    return Told(name, code_of("trackers", name)(tracker_settings, run), run.name)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite metrics by name."""
    return {name: value for name, value in sorted(metrics.items()) if math.isfinite(value)}
