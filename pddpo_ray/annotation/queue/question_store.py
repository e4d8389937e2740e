"""A queue that belongs to no run: a folder with a database, and questions of files in it.

    store = begin(Path("questions.annotation"))
    added = add_questions(store, read_questions(Path("questions.jsonl")), labels_each=2)

Adding a file again adds only its new rows, as further batches, so that nothing is asked twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select

from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.question_files import AskedRow
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.errors import UserError
from pddpo_ray.journal.annotation_schema import question_round, task
from pddpo_ray.journal.database import now_ms, open_database, reading
from pddpo_ray.journal.identity import QUESTIONS_ALONE, new_identity
from pddpo_ray.journal.schema import run
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Question
from pddpo_ray.storage.whole_files import JOURNAL

RULES = Rules(backlog_max=1_000_000_000)
"""No sampler waits for these people: a file is asked whole, however long it is."""
PURPOSES = {"safety": "safety", "pair": "compare"}
"""Of the batches, by the kind of their questions."""
WORDS = {"kind": "kind", "prompt": "prompt", "first": "answer", "second": "second answer", "turns": "turns"}
"""Columns that may not change once asked, and their names in messages."""


@dataclass(frozen=True)
class Added:
    """Of a file's questions, how many are new and how many known; `others`: asked before, but not in the file."""

    new: int
    known: int
    others: int


def begin(folder: Path) -> Store:
    """The queue in this folder, which is made where there is none.

    Raises UserError for a folder that holds something else.
    """
    database = folder / JOURNAL
    if not database.is_file() and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} holds something else than questions: name a new folder with --store")
    engine = open_database(database)
    try:
        with engine.begin() as connection:
            rows = connection.execute(select(run.c.id, run.c.recipe)).all()
            if not rows:
                id_, recipes = new_identity(), {"recipe": QUESTIONS_ALONE, "fixed_settings": QUESTIONS_ALONE}
                connection.execute(insert(run).values(id=id_, name=folder.name, created_ms=now_ms(), **recipes))
                return Store(engine, id_)
        if [row.recipe for row in rows] != [QUESTIONS_ALONE]:
            raise UserError(f"{folder} holds a run: name a new folder with --store, or serve the run with --run")
        return Store(engine, rows[0].id)
    except BaseException:
        engine.dispose()
        raise


def add_questions(store: Store, rows: list[AskedRow], *, labels_each: int) -> Added:
    """Opens batches of the questions that are new, one for each kind; `labels_each` is for them alone.

    Raises UserError, before anything is added, for a known id with other texts.
    """
    stored_rows = _stored_questions(store)
    for row in rows:
        _demand_unchanged_question(row, stored_rows.get(row.question.item))
    new = [row.question for row in rows if row.question.item not in stored_rows]
    rounds, number = Rounds(store, RULES), _last_round(store) + 1
    for kind, purpose in PURPOSES.items():
        if questions := [question for question in new if question.kind == kind]:
            rounds.open(number, purpose, questions, labels_each=labels_each, by="command line")
    known_count = len(rows) - len(new)
    return Added(len(new), known_count, len(stored_rows) - known_count)


def _stored_questions(store: Store) -> dict[str, Any]:
    """What was asked before, by the question's id."""
    query = (
        select(task.c.item, *(task.c[name] for name in WORDS))
        .join(question_round, question_round.c.id == task.c.question_round)
        .where(question_round.c.run == store.run, task.c.gold.is_(None))
    )
    with reading(store.engine) as connection:
        return {row.item: row for row in connection.execute(query)}


def _demand_unchanged_question(row: AskedRow, before: Any) -> None:
    if before is None:
        return
    now = _question_columns(row.question)
    changes = [word for name, word in WORDS.items() if getattr(before, name) != now[name]]
    if changes:
        raise UserError(
            f"{row.where}: question {row.question.item} was asked with another {' and '.join(changes)}, and labels are"
            " about what was asked; give the changed question an `id` of its own"
        )


def _question_columns(question: Question) -> dict[str, Any]:
    turns = [list(turn) for turn in question.turns] or None
    return {name: getattr(question, name) for name in WORDS} | {"turns": turns}


def _last_round(store: Store) -> int:
    query = select(question_round.c.round).where(question_round.c.run == store.run)
    with reading(store.engine) as connection:
        return max(connection.execute(query).scalars(), default=0)
