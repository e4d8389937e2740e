"""Builds report.html of a run: one file that needs nothing beside it."""

from __future__ import annotations

from pathlib import Path

from pddpo_ray.report.headline import header
from pddpo_ray.report.run_data import RunData, read_run
from pddpo_ray.report.sections import SECTIONS
from pddpo_ray.report.shell import page
from pddpo_ray.storage.whole_files import write_whole


def build_report(run_dir: Path, journal: str | Path | None = None, out: Path | None = None) -> Path:
    """Writes `out`, or `<run_dir>/report.html`, from the journal and result.json; returns its path.

    `journal` is the database of a run that does not keep it in its folder. Works for a run in any state. Raises
    UserError if there is no journal.
    """
    return write_whole(out or run_dir / "report.html", render(read_run(run_dir, journal)))


def render(run: RunData) -> str:
    """The page of a run as text."""
    sections = [(key, title, draw(run)) for key, title, draw in SECTIONS]
    return page(run.name, "pddpo report", header(run), sections, "the journal and result.json of the run")
