"""What each question counts, kept right inside a transaction: seats of labels, leases that are out, refusals, state."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, exists, insert, select, update

from pddpo_ray.annotation.people import Person
from pddpo_ray.annotation.queue_rules import Outcome, Problem, QueueError, Rules
from pddpo_ray.journal.annotation_schema import answer, lease, seat, task, withdrawal


def demand_mine(connection: Connection, person: Person, lease_id: str) -> Any:
    """The row of the person's own lease, locked. Raises QueueError: not_found, not_yours."""
    row = connection.execute(select(lease).where(lease.c.id == lease_id).with_for_update()).first()
    if row is None:
        raise QueueError(Problem.NOT_FOUND, f"there is no question {lease_id!r} in your hands")
    if row.annotator != person.id:
        raise QueueError(Problem.NOT_YOURS, "this question is in another person's hands")
    return row


def take_seat(connection: Connection, asked: Any, person_id: str, answer_seq: int) -> None:
    """The answer counts: it takes the first free seat of its question."""
    taken = set(connection.execute(select(seat.c.place).where(seat.c.task == asked.id)).scalars())
    free = next(number for number in range(asked.needed) if number not in taken)
    row = {"task": asked.id, "place": free, "needed": asked.needed, "annotator": person_id, "answer": answer_seq}
    connection.execute(insert(seat).values(**row))
    connection.execute(update(task).where(task.c.id == asked.id).values(seats=task.c.seats + 1))


def withdraw(connection: Connection, asked: Any, given: Any, *, by: str, kind: str, reason: str, at_ms: int) -> None:
    row = {"answer": given.seq, "by": by, "kind": kind, "reason": reason, "at_ms": at_ms}
    connection.execute(insert(withdrawal).values(**row))
    freed = connection.execute(delete(seat).where(seat.c.answer == given.seq)).rowcount
    if freed:
        connection.execute(update(task).where(task.c.id == asked.id).values(seats=task.c.seats - 1))
    if given.outcome == Outcome.REFUSED and asked.refusals > 0:
        connection.execute(update(task).where(task.c.id == asked.id).values(refusals=task.c.refusals - 1))


def give_back(connection: Connection, task_id: str, rules: Rules) -> None:
    """A lease ended without an answer: its question may go to somebody else."""
    connection.execute(update(task).where(task.c.id == task_id).values(leased=task.c.leased - 1))
    promote(connection, task_id)
    settle(connection, task_id, rules)


def promote(connection: Connection, task_id: str) -> None:
    """Counts answers that were surplus before, the earliest first, where labels are wanted again."""
    asked = connection.execute(select(task).where(task.c.id == task_id).with_for_update()).one()
    taken_back = exists().where(withdrawal.c.answer == answer.c.seq)
    seated = exists().where(seat.c.task == answer.c.task, seat.c.annotator == answer.c.annotator)
    waiting = select(answer.c.seq, answer.c.annotator).where(
        answer.c.task == task_id, answer.c.outcome == Outcome.SURPLUS.value, ~taken_back, ~seated
    )
    free = asked.needed - asked.seats - asked.leased
    for row in connection.execute(waiting.order_by(answer.c.seq).limit(max(free, 0))).all():
        take_seat(connection, asked, row.annotator, row.seq)


def settle(connection: Connection, task_id: str, rules: Rules) -> None:
    """Sets the state of a question to what its counts say: open, satisfied or blocked."""
    row = connection.execute(select(task).where(task.c.id == task_id)).one()
    blocked = row.gold is None and row.refusals >= rules.refusals_max
    state = "satisfied" if row.seats == row.needed else "blocked" if blocked else "open"
    if state != row.state:
        connection.execute(update(task).where(task.c.id == task_id).values(state=state))
