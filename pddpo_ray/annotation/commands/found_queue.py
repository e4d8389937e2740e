"""Finds the queue of a folder: of a run, or of a file of questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pddpo_ray.cli.runs.recipe_of_run import store_of
from pddpo_ray.storage.whole_files import JOURNAL

if TYPE_CHECKING:
    from pddpo_ray.annotation.queue.queue_rules import Rules
    from pddpo_ray.journal.transactions import Store


@dataclass(frozen=True)
class FoundQueue:
    """Questions for people, of a run or alone, and where their database is."""

    id: str
    rules: Rules
    database: str


@contextmanager
def queue_of(run: Path, journal: str | None, *, to_read: bool = False) -> Iterator[tuple[Store, Rules]]:
    """The queue's database in this folder, and the queue's rules."""
    queue = find_queue(run, journal)
    with store_of(queue, to_read=to_read) as store:
        yield store, queue.rules


def find_queue(run: Path, journal: str | None) -> FoundQueue:
    """The questions in this folder, of a run or of a file. Raises UserError if there are none."""
    from pddpo_ray.annotation.queue.question_store import RULES
    from pddpo_ray.annotation.queue.queue_rules import Rules
    from pddpo_ray.config import Config
    from pddpo_ray.journal.identity import QUESTIONS_ALONE, open_folder

    folder = run.expanduser().absolute()
    with open_folder(folder, journal, questions_alone=True) as reader:
        alone = reader.recipe == QUESTIONS_ALONE
        rules = RULES if alone else Rules.of(Config.of_run(reader.recipe).people)
        return FoundQueue(reader.run_id, rules, journal or str(folder / JOURNAL))
