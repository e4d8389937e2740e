"""A run that exists, as its folder says: its recipe, its database and its identity there."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import JOURNAL

if TYPE_CHECKING:
    from pddpo_ray.annotation.queue_rules import Rules
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


@dataclass(frozen=True)
class FoundQueue:
    """Questions for people, of a run or alone, and where their database is."""

    id: str
    rules: Rules
    database: str


def find_run(run: Path, journal: str | None, *, wait: bool = False) -> FoundRun:
    """The run in this folder; `wait`: until it begins. Raises UserError if there is none."""
    from pddpo_ray.config import Config
    from pddpo_ray.journal.identity import open_folder

    folder = run.expanduser().absolute()
    while True:
        try:
            with open_folder(folder, journal) as opened:
                config = Config.of_run(opened.recipe)
                return FoundRun(folder, opened.run_id, config, journal or str(folder / JOURNAL))
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


@contextmanager
def queue_of(run: Path, journal: str | None, *, to_read: bool = False) -> Iterator[tuple[Store, Rules]]:
    """The queue's database in this folder, and the queue's rules."""
    stored = find_queue(run, journal)
    with store_of(stored, to_read=to_read) as store:
        yield store, stored.rules


def find_queue(run: Path, journal: str | None) -> FoundQueue:
    """The questions in this folder, of a run or of a file. Raises UserError if there are none."""
    from pddpo_ray.annotation.question_store import RULES
    from pddpo_ray.config import Config
    from pddpo_ray.journal.identity import QUESTIONS_ALONE, open_folder

    folder = run.expanduser().absolute()
    with open_folder(folder, journal, questions_alone=True) as opened:
        alone = opened.recipe == QUESTIONS_ALONE
        rules = RULES if alone else rules_for(Config.of_run(opened.recipe))
        return FoundQueue(opened.run_id, rules, journal or str(folder / JOURNAL))


def rules_for(config: Config) -> Rules:
    """The queue's rules of a run."""
    from pddpo_ray.parts.mixed_labelling import rules_of

    return rules_of(config.people)


@contextmanager
def store_of(stored: FoundRun | FoundQueue, *, to_read: bool = False) -> Iterator[Store]:
    """The run's database while the block lasts; `to_read`: nothing in the folder is written."""
    from pddpo_ray.journal.database import open_database
    from pddpo_ray.journal.read_only import open_to_read
    from pddpo_ray.journal.transactions import Store

    engine = (open_to_read if to_read else open_database)(stored.database)
    try:
        yield Store(engine, stored.id)
    finally:
        engine.dispose()
