"""`pddpo compare SUITE`: units of work here or over Ray, then the page and the CSV files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pddpo_lab.compare.page import render
from pddpo_lab.compare.runner import Row, Tell, Unit, rows_so_far, run_unit, units_of
from pddpo_lab.compare.suite import Suite
from pddpo_lab.compare.tables import csv_of_runs, csv_of_traces
from pddpo_ray.storage.whole_files import write_whole

PAGE = "compare.html"
RunUnits = Callable[[Suite, Sequence[Unit], Path, Tell], list[Row]]
"""Runs units and returns the rows of all their arms, failed ones included."""


def run_here(suite: Suite, units: Sequence[Unit], folder: Path, tell: Tell) -> list[Row]:
    """One unit after another in this process. On a text world that means one seed, for it has one engine."""
    return [row for unit in units for row in run_unit(suite, unit, folder, tell)]


def compare(suite: Suite, folder: Path, run_units: RunUnits, tell: Tell, command: str = "") -> list[Row]:
    """Runs what is not finished, writes compare.html, compare.csv and compare-rounds.csv. Returns failed rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = run_units(suite, units_of(suite), folder, tell)
    failures = [row for row in rows if "error" in row]
    write_page(suite, folder, failures, command)
    return failures


def write_page(suite: Suite, folder: Path, failures: Sequence[Row] = (), command: str = "") -> Path:
    """The page and its data from the runs that are finished, whether the suite is or not."""
    rows = rows_so_far(suite, folder)
    write_whole(folder / "compare.csv", csv_of_runs(suite, rows))
    write_whole(folder / "compare-rounds.csv", csv_of_traces(rows))
    return write_whole(folder / PAGE, render(suite, rows, failures, command))
