"""What a person answered, as they saw it, and whether they can still change it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import exists, func, select

from pddpo_ray.annotation.people.accounts import Person
from pddpo_ray.annotation.queue.answer_forms import screen_form
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.journal.annotation_schema import answer, question_round, task, withdrawal
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Given

PROMPT_MAX = 300
"""Letters of a prompt that a list shows."""


@dataclass(frozen=True)
class Said:
    """One answer of a person; `given` is what they pressed, `kind` label, abstain, skip or flag."""

    seq: int
    lease: str
    at_ms: int
    kind: str
    question: str
    prompt: str
    given: Given
    note: str
    guideline: int
    """Version of the guidelines that its author could read."""
    changeable: bool


class History:
    """Reads the answers of the people of one run."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store, self._rules = store, rules

    def of(self, person: Person, before: int | None, limit: int) -> list[Said]:
        """The newest answers first, without those that were taken back; `before` continues a list. The last answer to a
        question can be taken back for `undo_s` while its batch is open."""
        taken_back = exists().where(withdrawal.c.answer == answer.c.seq)
        query = (
            select(
                answer, task.c.kind.label("question"), func.substr(task.c.prompt, 1, PROMPT_MAX).label("prompt"),
                question_round.c.state,
            )
            .join(task, task.c.id == answer.c.task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(answer.c.annotator == person.id, question_round.c.run == self._store.run, ~taken_back)
        )  # fmt: skip
        if before is not None:
            query = query.where(answer.c.seq < before)
        with reading(self._store.engine) as connection:
            rows = connection.execute(query.order_by(answer.c.seq.desc()).limit(limit)).all()
        since = self._store.clock() - int(1000 * self._rules.undo_s)
        return [
            Said(
                row.seq, row.lease, row.at_ms, row.kind, row.question, row.prompt,
                screen_form(row.question, row.given, row.swap) if row.kind == "label" else {}, row.note,
                row.guideline, row.state == "open" and row.at_ms >= since,
            )
            for row in rows
        ]  # fmt: skip
