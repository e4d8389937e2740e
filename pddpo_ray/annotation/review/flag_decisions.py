"""What a lead does about a flagged person: nothing happens by itself, and every choice is in the audit log.

| choice | labels in open batches | questions from now on |
|---|---|---|
| hold-back | stand | none, until the lead lets the person continue; answers that still come wait as surplus |
| ask-again | are taken out of the count, and other people are asked | as before |
| exclude | stand | none: the account is closed |
| go-on | stand; what waited counts where a seat is free | as before |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, select, update

from pddpo_ray.annotation.people.accounts import People
from pddpo_ray.annotation.queue.answers import Answers
from pddpo_ray.annotation.queue.assignment import Leases, promote, settle
from pddpo_ray.annotation.queue.queue_rules import Outcome, Problem, QueueError, Rules
from pddpo_ray.journal.annotation_schema import annotator, answer, audit_event, question_round, seat, task
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store

ACTION = "flag.decide"


class FlagDecision(StrEnum):
    """What may be done about a person's flags."""

    HOLD_BACK = "hold-back"
    ASK_AGAIN = "ask-again"
    EXCLUDE = "exclude"
    GO_ON = "go-on"


@dataclass(frozen=True)
class Decided:
    """The newest choice about a person: by whom (a handle), when and why."""

    decision: str
    by: str
    reason: str
    at_ms: int


class FlagDecisions:
    """Takes and tells choices about the people of one run."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store, self._rules = store, rules
        self._people, self._leases, self._answers = People(store), Leases(store, rules), Answers(store, rules)

    def decide(self, person_id: str, decision: FlagDecision, *, by: str, reason: str, evidence: str = "") -> int:
        """Carries the choice out; returns how many labels stopped counting or began to. Raises QueueError: not_found,
        malformed without a reason."""
        if not reason.strip():
            raise QueueError(Problem.MALFORMED, "say why: the reason is kept with the choice")
        if decision is FlagDecision.EXCLUDE:
            self._people.change(person_id, by=by, active=False)

        def apply(connection: Connection) -> int:
            self._demand(connection, person_id)
            moved = 0
            if decision in (FlagDecision.HOLD_BACK, FlagDecision.GO_ON):
                hold = decision is FlagDecision.HOLD_BACK
                connection.execute(update(annotator).where(annotator.c.id == person_id).values(held=hold))
            if decision is FlagDecision.GO_ON:
                moved = self._let_count(connection, person_id)
            if decision is FlagDecision.ASK_AGAIN:
                moved = self._take_out(connection, person_id, by, reason)
            data = {"decision": decision.value, "reason": reason, "evidence": evidence, "labels": moved}
            record_event(connection, self._store.clock(), by, ACTION, person_id, **data)
            return moved

        moved = self._store.write(apply)
        if decision in (FlagDecision.HOLD_BACK, FlagDecision.EXCLUDE):
            self._leases.release_all(person_id)
        return moved

    def newest(self) -> dict[str, Decided]:
        """The newest choice about each person of the database, by id."""
        query = select(audit_event).where(audit_event.c.action == ACTION).order_by(audit_event.c.seq)
        with reading(self._store.engine) as connection:
            names = {row.id: row.handle for row in connection.execute(select(annotator.c.id, annotator.c.handle))}
            return {
                row.object: Decided(
                    row.data["decision"], names.get(row.actor, row.actor), row.data["reason"], row.at_ms
                )
                for row in connection.execute(query)
            }

    def _demand(self, connection: Connection, person_id: str) -> None:
        if connection.execute(select(annotator.c.id).where(annotator.c.id == person_id)).first() is None:
            raise QueueError(Problem.NOT_FOUND, f"there is no person {person_id!r}")

    def _take_out(self, connection: Connection, person_id: str, by: str, reason: str) -> int:
        """Takes out a person's counted labels of open batches."""
        query = (
            select(answer)
            .join(seat, seat.c.answer == answer.c.seq)
            .join(task, task.c.id == answer.c.task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(answer.c.annotator == person_id, question_round.c.run == self._store.run)
            .where(question_round.c.state == "open")
            .order_by(task.c.id)
        )
        rows = connection.execute(query.with_for_update(read=True, of=question_round)).all()
        for row in rows:
            question = connection.execute(select(task).where(task.c.id == row.task).with_for_update()).one()
            self._answers.take_out(connection, question, row, by=by, reason=reason)
        return len(rows)

    def _let_count(self, connection: Connection, person_id: str) -> int:
        """Counts waiting answers where open batches have seats."""
        waiting = (
            select(answer.c.task)
            .join(task, task.c.id == answer.c.task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(answer.c.annotator == person_id, answer.c.outcome == Outcome.SURPLUS.value)
            .where(question_round.c.run == self._store.run, question_round.c.state == "open")
            .order_by(task.c.id)
        )
        before = self._seats(connection, person_id)
        for task_id in connection.execute(waiting).scalars().all():
            promote(connection, task_id)
            settle(connection, task_id, self._rules)
        return self._seats(connection, person_id) - before

    def _seats(self, connection: Connection, person_id: str) -> int:
        return len(connection.execute(select(seat.c.task).where(seat.c.annotator == person_id)).all())
