"""MLflow through its own library, into a database in the run folder or to a server."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pddpo_ray.config.sections.report import MlflowSettings
from pddpo_ray.report.trackers.opening import RoundLog, TrackedRun, finite

DATABASE = "mlflow.sqlite"
RUN_ID = "mlflow-run.json"
"""Which run of MLflow a run folder is, so that a resumed run continues in it."""
AT_ONCE = 500
"""Most metrics that MLflow takes in one call (it refuses more than 1,000)."""


def mlflow_log(settings: MlflowSettings, run: TrackedRun) -> RoundLog:
    """The tracker `mlflow`. Raises ModuleNotFoundError where its library is not installed."""
    import mlflow  # an extra of its own
    import mlflow.entities
    import mlflow.tracking

    return MlflowLog(mlflow, settings, run)


class MlflowLog:
    """One run of MLflow for a run folder; rounds are its steps."""

    def __init__(self, library: ModuleType, settings: MlflowSettings, run: TrackedRun) -> None:
        self._library, self._settings, self._run = library, settings, run
        self._client: Any = None
        self._id = ""

    def write_round(self, round_: int, metrics: Mapping[str, float]) -> None:
        if self._client is None:
            uri = self._settings.uri or f"sqlite:///{self._run.folder / DATABASE}"
            self._client = self._library.tracking.MlflowClient(tracking_uri=uri)
            self._id = self._begin(uri)
        now, kind = int(time.time() * 1000), self._library.entities.Metric
        # MLflow takes letters, digits and _ - . / and spaces in names
        values = [kind(_name(name), value, now, round_) for name, value in finite(metrics).items()]
        for start in range(0, len(values), AT_ONCE):
            self._client.log_batch(self._id, metrics=values[start : start + AT_ONCE])

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id)

    def _begin(self, uri: str) -> str:
        file = self._run.folder / RUN_ID
        stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if stored.get("uri") == uri:
            self._client.update_run(stored["run"], status="RUNNING")
            return str(stored["run"])
        experiment = self._client.get_experiment_by_name(self._settings.experiment)
        experiment_id = (
            self._client.create_experiment(self._settings.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        run = self._client.create_run(experiment_id, run_name=self._run.name)
        recipe = json.dumps(dict(self._run.recipe), sort_keys=True)
        self._client.set_tag(run.info.run_id, "pddpo_ray.recipe", recipe[:5000])
        file.write_text(json.dumps({"uri": uri, "run": run.info.run_id}), encoding="utf-8")
        return str(run.info.run_id)


def _name(metric: str) -> str:
    return "".join(character if character.isalnum() or character in "_-./ " else "_" for character in metric)
