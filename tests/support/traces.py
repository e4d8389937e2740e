"""What two runs have in common when they computed the same: read from their journals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.records import HARM


def trace(run_dir: Path, journal_url: str | None = None) -> dict[str, Any]:
    """Multipliers, estimates, labels and versions (by content) of every round."""
    with read_journal(journal_url or run_dir / "journal.sqlite", run_dir.name) as journal:
        return {
            "multipliers": [
                (step.round, step.multiplier_before, step.multiplier_after, step.estimate.value)
                for step in journal.dual_steps()
            ],
            "versions": [(entry.version.number, entry.version.sha256) for entry in journal.versions()],
            "pairs": [
                (entry.round, entry.labelled.pair.id, entry.labelled.helpful, entry.labelled.label(HARM))
                for entry in journal.pairs()
            ],
            "safety": [
                (item.response.id, item.response.token_ids, item.labels)
                for number in sorted({step.round for step in journal.dual_steps()})
                for item in journal.safety(number)
            ],
        }


def workers_by_round(run_dir: Path) -> list[tuple[int, ...]]:
    """Process ids of the ranks of every fit, in order."""
    with read_journal(run_dir / "journal.sqlite", run_dir.name) as journal:
        return [entry.workers for entry in journal.versions() if entry.workers]


def phases_done(run_dir: Path, number: int) -> set[str]:
    """Finished phases of a round; none as long as there is no run."""
    try:
        journal = read_journal(run_dir / "journal.sqlite", run_dir.name)
    except UserError:
        return set()
    with journal:
        return {entry.phase for entry in journal.phases(number)}
