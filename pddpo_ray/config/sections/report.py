"""What a run shows while it runs and at its end, and which trackers get its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator

from pddpo_ray.config.registered import SettingsOf
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.registry import Extension, resolved


@dataclass(frozen=True)
class Tracker(Extension):
    """Who is told the numbers of every round. Its code takes its settings and a `report.trackers.TrackedRun` and
    returns a `report.trackers.RoundLog`."""


class WandbSettings(Strict):
    """Weights & Biases, through its own library (`pddpo-ray[wandb]`)."""

    project: str = "pddpo_ray"
    """The project that the run belongs to."""
    mode: str = Field("offline", pattern="^(offline|online)$")
    """offline: files in the run folder, which `wandb sync` sends later. online: sent during the run."""


class MlflowSettings(Strict):
    """MLflow, through its own library (`pddpo-ray[mlflow]`)."""

    uri: str | None = None
    """Where MLflow keeps its runs; null: the database `mlflow.sqlite` in the run folder."""
    experiment: str = "pddpo_ray"
    """The experiment that the run belongs to."""


TENSORBOARD = Tracker("pddpo_ray.report.trackers.tensorboard_log:tensorboard_log")
WANDB = Tracker("pddpo_ray.report.trackers.wandb_log:wandb_log", WandbSettings)
MLFLOW = Tracker("pddpo_ray.report.trackers.mlflow_log:mlflow_log", MlflowSettings)


class ReportConfig(Strict):
    """What a run shows."""

    tensorboard: bool = True
    """Write TensorBoard files into the run folder."""
    trackers: Annotated[dict[str, dict[str, Any]], SettingsOf("trackers", by_name=True)] = Field({})
    """Who else is told the numbers of every round, by name with its settings: wandb, mlflow, or one of an installed
    package."""
    html: bool = True
    """Write report.html at the end."""
    samples: int = Field(12, ge=0)
    """Answers shown before and after."""

    @field_validator("trackers")
    @classmethod
    def trackers_take_them(cls, trackers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Each tracker's own class checks its settings."""
        return {
            name: resolved("trackers", name, options, f"report.trackers.{name}") for name, options in trackers.items()
        }
