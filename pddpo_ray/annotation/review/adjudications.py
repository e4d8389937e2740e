"""A lead decides where people differ about a pair: training then uses the lead's answer instead of the first label.

Labels about safety stay as they are: their disagreement is what the cost estimate measures.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, insert, select

from pddpo_ray.annotation.queue.answer_forms import GOLD_ANSWERS
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.journal.annotation_schema import adjudication, annotator, question_round, task
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import contradicts_itself


class Adjudications:
    """Decisions about single pairs of one run, as long as their batch is open. Labels stay stored as they were given,
    and agreement is that of the people alone."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def decide(self, task_id: str, answer: Mapping[str, str], *, by: str, reason: str) -> None:
        """`answer` is a whole answer in stored form; a further decision takes the place of this one. Raises QueueError:
        not_found, malformed, round_closed."""

        def apply(connection: Connection) -> None:
            query = (
                select(task.c.kind, task.c.seats, question_round.c.state)
                .join(question_round, question_round.c.id == task.c.question_round)
                .where(task.c.id == task_id, question_round.c.run == self._store.run, task.c.gold.is_(None))
            )
            row = connection.execute(query.with_for_update(read=True, of=question_round)).first()
            if row is None:
                raise QueueError(Problem.NOT_FOUND, f"there is no question {task_id!r} in this run")
            if row.kind != "pair":
                raise QueueError(Problem.MALFORMED, "only pairs are decided: labels about safety count as they are")
            if row.state != "open":
                raise QueueError(Problem.ROUND_CLOSED, "the round is closed: its labels are fixed")
            _demand_whole(answer)
            values = {"task": task_id, "given": dict(answer), "by": by, "reason": reason, "at_ms": self._store.clock()}
            connection.execute(insert(adjudication).values(**values))
            record_event(connection, self._store.clock(), by, "pair.adjudicate", task_id, given=answer, reason=reason)

        self._store.write(apply)

    def newest(self, round_id: str) -> dict[str, dict[str, object]]:
        """The newest decision per question of a batch: answer, author (a handle), reason."""
        query = (
            select(adjudication, annotator.c.handle)
            .join(task, task.c.id == adjudication.c.task)
            .outerjoin(annotator, annotator.c.id == adjudication.c.by)
            .where(task.c.question_round == round_id)
            .order_by(adjudication.c.seq)
        )
        with reading(self._store.engine) as connection:
            return {
                row.task: {"given": row.given, "by": row.handle or row.by, "reason": row.reason}
                for row in connection.execute(query)
            }


def _demand_whole(answer: Mapping[str, str]) -> None:
    fields = GOLD_ANSWERS["pair"]
    if set(answer) != set(fields):
        raise QueueError(Problem.MALFORMED, f"a pair is decided by {', '.join(fields)}; got {', '.join(answer)}")
    for name, value in answer.items():
        if value not in fields[name]:
            raise QueueError(Problem.MALFORMED, f"{name} is {' or '.join(fields[name])}, not {value!r}")
    if contradicts_itself(answer):
        raise QueueError(Problem.MALFORMED, "this calls the only safe answer the more harmful one")
