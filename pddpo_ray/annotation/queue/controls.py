"""Control questions: what people made of them, and how one is taken out of use."""

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
    """A control question; `right` of the `answered` labels say all that is known about it."""

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
        asked = task.join(question_round, question_round.c.id == task.c.question_round)
        query = (
            select(task, answer.c.given)
            .select_from(asked.outerjoin(answer, labelled))
            .where(question_round.c.run == self._store.run, task.c.gold.is_not(None))
            .order_by(task.c.kind, task.c.position)
        )
        by_row: dict[str, Control] = {}
        with reading(self._store.engine) as connection:
            for row in connection.execute(query):
                new = Control(row.id, row.kind, row.item, row.prompt, row.gold, retired=row.state == DROPPED)
                one = by_row.setdefault(row.id, new)
                if row.given is not None:
                    right = all(row.given.get(name) == value for name, value in row.gold.items())
                    by_row[row.id] = replace(one, answered=one.answered + 1, right=one.right + right)
        return list(by_row.values())

    def fates(self, questions: Sequence[Question]) -> list[tuple[Fate, str]]:
        """What `Rounds.add_gold` would do with each question alone, and why; an item that another question has, of the
        stock or earlier in the sequence, is refused. Writes nothing."""
        joined = task.join(question_round, question_round.c.id == task.c.question_round)
        mine = (question_round.c.run == self._store.run) & task.c.gold.is_not(None)
        with reading(self._store.engine) as connection:
            stock = {
                (row.kind, row.item): row for row in connection.execute(select(task).select_from(joined).where(mine))
            }
        earlier: set[tuple[str, str]] = set()
        fates = []
        for question in questions:
            named = (question.kind, question.item)
            fates.append(_fate(question, stock.get(named), named in earlier))
            earlier |= {named} if fates[-1][0] is Fate.ADDED else set()
        return fates

    def retire(self, id_: str, *, by: str) -> bool:
        """A control question is asked no more; one that nobody ever got is deleted. Returns whether it was deleted.

        Raises QueueError (not_found).
        """

        def apply(connection: Connection) -> bool:
            joined = task.join(question_round, question_round.c.id == task.c.question_round)
            mine = (question_round.c.run == self._store.run) & task.c.gold.is_not(None) & (task.c.id == id_)
            if connection.execute(select(task.c.id).select_from(joined).where(mine)).first() is None:
                raise QueueError(Problem.NOT_FOUND, f"there is no control question {id_!r}")
            met = connection.execute(select(lease.c.id).where(lease.c.task == id_).limit(1)).first() is not None
            if met:
                connection.execute(update(task).where(task.c.id == id_).values(state=DROPPED))
            else:
                connection.execute(delete(task).where(task.c.id == id_))
            record_event(connection, self._store.clock(), by, "gold.retire", id_, deleted=not met)
            return not met

        return self._store.write(apply)


def _fate(question: Question, there: Any, earlier: bool) -> tuple[Fate, str]:
    """`there`: the row of the stock that has its item; `earlier`: whether one before it has."""
    try:
        demand_gold(question)
    except QueueError as error:
        return Fate.REFUSED, str(error)
    if earlier:
        return Fate.REFUSED, f"item {question.item} stands in the file twice"
    if there is None:
        return Fate.ADDED, ""
    same = all(getattr(there, name) == getattr(question, name) for name in ("prompt", "first", "second", "gold"))
    if not same:
        return Fate.REFUSED, f"another control question has the item {question.item}: give this one an item of its own"
    return Fate.THERE, "retired" if there.state == DROPPED else "it is there already"
