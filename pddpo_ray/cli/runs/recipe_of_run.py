"""A run that exists, as its folder says: its recipe, its database and its identity there."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import JOURNAL

if TYPE_CHECKING:
    from pddpo_ray.config import Config
    from pddpo_ray.journal.transactions import Store

LOOK_S = 0.3


@dataclass(frozen=True)
class FoundRun:
    """A run and where its journal is."""

    folder: Path
    id: str
    config: Config
    database: str


def find_run(run: Path, journal: str | None, *, wait: bool = False) -> FoundRun:
    """The run in this folder; `wait`: until it begins. Raises UserError if there is none."""
    from pddpo_ray.config import Config
    from pddpo_ray.journal.identity import open_folder

    folder = run.expanduser().absolute()
    while True:
        try:
            with open_folder(folder, journal) as reader:
                config = Config.of_run(reader.recipe)
                return FoundRun(folder, reader.run_id, config, journal or str(folder / JOURNAL))
        except UserError:
            if not wait:
                raise
            time.sleep(LOOK_S)


def load_of_run(run: Path, overrides: Sequence[str] = ()) -> Config:
    """The recipe that the run in this folder has, with overrides; `journal=URL` among them says where its database is.

    Raises UserError if there is no run.
    """
    from pddpo_ray.config import load, to_yaml

    journal = next((text.partition("=")[2] for text in overrides if text.startswith("journal=")), None)
    stored = find_run(run, journal)
    with tempfile.TemporaryDirectory(prefix="pddpo-recipe-") as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(to_yaml(stored.config), encoding="utf-8")
        return load(str(recipe), overrides)


class Stored(Protocol):
    """What is kept in a database under an id: a run, or questions without one."""

    @property
    def id(self) -> str: ...

    @property
    def database(self) -> str: ...


@contextmanager
def store_of(stored: Stored, *, to_read: bool = False) -> Iterator[Store]:
    """The run's database while the block lasts; `to_read`: nothing in the folder is written."""
    from pddpo_ray.journal.database import open_database
    from pddpo_ray.journal.read_only import open_to_read
    from pddpo_ray.journal.transactions import Store

    engine = (open_to_read if to_read else open_database)(stored.database)
    try:
        yield Store(engine, stored.id)
    finally:
        engine.dispose()
