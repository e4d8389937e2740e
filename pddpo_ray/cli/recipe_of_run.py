"""The recipe of a run that exists, as its journal keeps it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from pddpo_ray.errors import UserError
from pddpo_ray.storage.folders import JOURNAL

if TYPE_CHECKING:
    from pddpo_ray.config import Config

LOOK_S = 0.3


def recipe_of(run: Path, journal: str | None, *, wait: bool = False) -> tuple[Config, str]:
    """Recipe and journal's place of the run in this folder; `wait`: until it begins. UserError if there is none."""
    from pddpo_ray.config import Config
    from pddpo_ray.journal import read_journal

    place = journal or str(run / JOURNAL)
    while wait and not _has_begun(run, journal):
        time.sleep(LOOK_S)
    if journal is None and not (run / JOURNAL).is_file():
        raise UserError(
            f"there is no run in {run}: name the folder given to `pddpo train --run`, or its database with --journal"
        )
    with read_journal(place, run.name) as opened:
        return Config.model_validate(opened.recipe), place


def _has_begun(run: Path, journal: str | None) -> bool:
    """Looks without opening the journal as such: that would create it, or bring its schema up to date."""
    from sqlalchemy import create_engine, select
    from sqlalchemy.exc import DBAPIError

    from pddpo_ray.journal.schema import run as table

    if journal is None and not (run / JOURNAL).is_file():
        return False
    url = f"sqlite:///{run / JOURNAL}" if journal is None else journal.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return connection.execute(select(table.c.id).where(table.c.id == run.name)).first() is not None
    except DBAPIError:
        return False
    finally:
        engine.dispose()
