"""A tabular run of seconds, and the story of a run: everything that must not depend on how often it was broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pddpo_ray.certificates.ledger import Entry, read_ledger
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder

SMALL = (
    "rollout.candidates=4",
    "feedback.responses=10",
    "limits.cost.labels_each=4",
    "explore.prompts=6",
    "explore.calibration=16",
    "offline.pairs=40",
)
MEASURED = tuple(one for one in SMALL if not one.startswith("limits.cost."))
"""The same for recipes whose limits sources measure, `tabular-limits`."""


def small(*overrides: str, rounds: int = 2) -> Config:
    return load("tabular", [*SMALL, f"rounds={rounds}", *overrides])


def story(run_dir: Path, *, url: str | None = None) -> dict[str, Any]:
    """Prompts, versions, samples, labels and the multiplier's trace of a finished run."""
    with open_folder(run_dir, url) as journal:
        return {
            "prompts": [(e.round, e.phase, e.payload) for e in journal.phases(like="prompts-%")],
            "versions": [(e.version, e.round, e.stage, e.base, e.multiplier) for e in journal.versions()],
            "samples": journal.samples(),
            "safety": journal.safety(),
            "pairs": journal.pairs(),
            "dual": journal.dual_steps(),
            "exact": [
                {name: value for name, value in values.items() if name.startswith(("exact/", "explore/", "dual/"))}
                for values in journal.metrics().values()
            ],
        }


def run_of(run_dir: Path) -> str:
    """Identity of the run in a folder."""
    with open_folder(run_dir) as journal:
        return journal.run_id


def finish(config: Config, run_dir: Path, **options: Any) -> dict[str, Any]:
    """Runs to the end and returns the story."""
    run_recipe(config, run_dir, **options)
    return story(run_dir)


def ledger(run_dir: Path) -> list[Entry]:
    """Empty while the run has no journal yet."""
    try:
        with open_folder(run_dir) as journal:
            return read_ledger(journal)
    except UserError:
        return []
