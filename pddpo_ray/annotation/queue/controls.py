"""Control questions: how people answered them, and how one is retired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, delete, exists, select, update

from pddpo_ray.annotation.queue.answer_forms import demand_gold
from pddpo_ray.annotation.queue.batch_rows import DROPPED
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.journal.annotation_schema import answer, lease, question_round, task, withdrawal
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Question


@dataclass(frozen=True)
class Control:
    """A control question; `right` of its `answered` labels agree with all of `gold`."""

    id: str
    kind: str
    item: str
    prompt: str
    gold: dict[str, str]
    retired: bool
    answered: int = 0
    right: int = 0


class Fate(StrEnum):
    """What an import does with a control question."""

    ADDED = "added"
    THERE = "there"
    REFUSED = "refused"


class Controls:
    """The stock of control questions of one run; `Rounds.add_gold` adds to it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> list[Control]:
        """Every control question, retired ones too."""
        taken_back = exists().where(withdrawal.c.answer == answer.c.seq)
        labelled = (answer.c.task == task.c.id) & (answer.c.kind == "label") & ~taken_back
        tables = task.join(question_round, question_round.c.id == task.c.question_round)
        query = (
            select(task, answer.c.given)
            .select_from(tables.outerjoin(answer, labelled))
            .where(question_round.c.run == self._store.run, task.c.gold.is_not(None))
            .order_by(task.c.kind, task.c.position)
        )
        by_row: dict[str, Control] = {}
        with reading(self._store.engine) as connection:
            for row in connection.execute(query):
                new = Control(row.id, row.kind, row.item, row.prompt, row.gold, retired=row.state == DROPPED)
                control = by_row.setdefault(row.id, new)
                if row.given is not None:
                    right = all(row.given.get(name) == value for name, value in row.gold.items())
                    by_row[row.id] = replace(control, answered=control.answered + 1, right=control.right + right)
        return list(by_row.values())

    def fates(self, questions: Sequence[Question]) -> list[tuple[Fate, str]]:
        """What `Rounds.add_gold` would do with each question alone, and why; an item that another question has, of the
        stock or earlier in the sequence, is refused. Writes nothing."""
        tables = task.join(question_round, question_round.c.id == task.c.question_round)
        gold = (question_round.c.run == self._store.run) & task.c.gold.is_not(None)
        with reading(self._store.engine) as connection:
            stock = {
                (row.kind, row.item): row for row in connection.execute(select(task).select_from(tables).where(gold))
            }
        earlier: set[tuple[str, str]] = set()
        fates = []
        for question in questions:
            key = (question.kind, question.item)
            fates.append(_fate(question, stock.get(key), key in earlier))
            earlier |= {key} if fates[-1][0] is Fate.ADDED else set()
        return fates

    def retire(self, id_: str, *, by: str) -> bool:
        """Stops asking a control question; deletes it if nobody ever got it. Returns whether it was deleted.

        Raises QueueError (not_found).
        """

        def apply(connection: Connection) -> bool:
            tables = task.join(question_round, question_round.c.id == task.c.question_round)
            control = (question_round.c.run == self._store.run) & task.c.gold.is_not(None) & (task.c.id == id_)
            if connection.execute(select(task.c.id).select_from(tables).where(control)).first() is None:
                raise QueueError(Problem.NOT_FOUND, f"there is no control question {id_!r}")
            was_leased = connection.execute(select(lease.c.id).where(lease.c.task == id_).limit(1)).first() is not None
            if was_leased:
                connection.execute(update(task).where(task.c.id == id_).values(state=DROPPED))
            else:
                connection.execute(delete(task).where(task.c.id == id_))
            record_event(connection, self._store.clock(), by, "gold.retire", id_, deleted=not was_leased)
            return not was_leased

        return self._store.write(apply)


def _fate(question: Question, row: Any, earlier: bool) -> tuple[Fate, str]:
    """`row`: of the stock, with the same item; `earlier`: whether an earlier question has it."""
    try:
        demand_gold(question)
    except QueueError as error:
        return Fate.REFUSED, str(error)
    if earlier:
        return Fate.REFUSED, f"item {question.item} stands in the file twice"
    if row is None:
        return Fate.ADDED, ""
    same = all(getattr(row, name) == getattr(question, name) for name in ("prompt", "first", "second", "gold"))
    if not same:
        return Fate.REFUSED, f"another control question has the item {question.item}: give this one an item of its own"
    return Fate.THERE, "retired" if row.state == DROPPED else "it is there already"
