"""The recipe of a run that exists, as its journal keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pddpo_ray.errors import UserError

if TYPE_CHECKING:
    from pddpo_ray.config import Config

JOURNAL = "journal.sqlite"


def recipe_of(run: Path, journal: str | None) -> tuple[Config, str]:
    """Recipe and place of the journal of the run in this folder. UserError if there is none."""
    from pddpo_ray.config import Config
    from pddpo_ray.journal import Journal

    place = journal or str(run / JOURNAL)
    if journal is None and not (run / JOURNAL).is_file():
        raise UserError(
            f"there is no run in {run}: name the folder given to `pddpo train --run`, or its database with --journal"
        )
    with Journal.open(place, run.name) as opened:
        return Config.model_validate(opened.recipe), place
