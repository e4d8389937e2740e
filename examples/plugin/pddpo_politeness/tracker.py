"""A tracker: a line of a CSV file for every number of every round, `report.trackers={csv: {}}`."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from pddpo_ray.config.sections.report import Tracker
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.report.trackers.opening import TrackedRun, finite


class CsvSettings(Strict):
    """Where it writes."""

    file: str = "rounds.csv"
    """Name of the file in the run folder."""


class CsvLog:
    """Satisfies report.trackers.RoundLog."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write_round(self, round_: int, metrics: Mapping[str, float]) -> None:
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows((round_, name, value) for name, value in finite(metrics).items())

    def close(self) -> None:
        """The file is closed after every round."""


def csv_log(settings: CsvSettings, run: TrackedRun) -> CsvLog:
    """The tracker for a run."""
    return CsvLog(run.folder / settings.file)


CSV = Tracker("pddpo_politeness.tracker:csv_log", CsvSettings)
