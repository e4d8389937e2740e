"""Weights & Biases through its own library: offline files in the run folder, or sent during the run."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pddpo_ray.config.sections.report import WandbSettings
from pddpo_ray.report.trackers.opening import RoundLog, TrackedRun, finite


def wandb_log(settings: WandbSettings, run: TrackedRun) -> RoundLog:
    """The tracker `wandb`. Raises ModuleNotFoundError where its library is not installed."""
    import wandb  # an extra of its own

    return WandbLog(wandb, settings, run)


class WandbLog:
    """One run of W&B for each sitting of a run; they are one group, and rounds are their steps."""

    def __init__(self, library: ModuleType, settings: WandbSettings, run: TrackedRun) -> None:
        self._library, self._settings, self._run = library, settings, run
        self._wandb_run: Any = None

    def write_round(self, round_: int, metrics: Mapping[str, float]) -> None:
        if self._wandb_run is None:
            self._wandb_run = self._library.init(
                project=self._settings.project,
                mode=self._settings.mode,
                dir=str(self._run.folder),
                name=self._run.name,
                group=self._run.name,
                config=dict(self._run.recipe),
                settings=self._library.Settings(console="off", disable_git=True, silent=True),
            )
        self._wandb_run.log(finite(metrics), step=round_)

    def close(self) -> None:
        if self._wandb_run is not None:
            self._wandb_run.finish()
