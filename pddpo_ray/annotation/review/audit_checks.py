"""Two checks: the log of administration has no gap, and the queue's counts fit its rows."""

from __future__ import annotations

from sqlalchemy import func, select

from pddpo_ray.journal.annotation_schema import (
    ERASED,
    answer,
    audit_event,
    lease,
    question_round,
    seat,
    task,
    withdrawal,
)
from pddpo_ray.journal.audit import GENESIS, digest_of
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store

ERASURE = "person.erase"


def broken_links(store: Store) -> list[int]:
    """Numbers of log entries that do not follow from the one before; empty for a log that nobody touched.

    An entry that was emptied because it named a person is sound if a later, sound entry (`person.erase`) says so.
    """
    with reading(store.engine) as connection:
        rows = connection.execute(select(audit_event).order_by(audit_event.c.seq)).all()
    broken: list[int] = []
    emptied: set[int] = set()
    previous = GENESIS
    for row in rows:
        expected = digest_of(row.at_ms, row.actor, row.action, row.object, row.data, previous)
        if row.previous != previous:
            broken.append(row.seq)
        elif row.sha256 != expected:
            if row.data == ERASED:
                emptied.add(row.seq)
            else:
                broken.append(row.seq)
        elif row.action == ERASURE:
            emptied -= {seq for seq in row.data["events"] if seq < row.seq}
        previous = row.sha256
    return sorted({*broken, *emptied})


def imbalances(store: Store) -> list[str]:
    """What does not add up in the run's queue, in words; empty when every label is where it belongs.

    Per question: seats taken and leases out equal their counters, nobody sits twice or without an answer of their own,
    a withdrawn answer has no seat, and a question is satisfied exactly when its seats are full.
    """
    tables = task.join(question_round, question_round.c.id == task.c.question_round)
    seats = select(seat.c.task, func.count().label("n")).group_by(seat.c.task).subquery()
    leases = (
        select(lease.c.task, func.count().label("n")).where(lease.c.state == "leased").group_by(lease.c.task).subquery()
    )
    books = (
        select(task, func.coalesce(seats.c.n, 0).label("sitting"), func.coalesce(leases.c.n, 0).label("out"))
        .select_from(tables.outerjoin(seats, seats.c.task == task.c.id).outerjoin(leases, leases.c.task == task.c.id))
        .where(question_round.c.run == store.run)
    )
    wrong_seats = (
        select(seat.c.task, seat.c.answer)
        .join(answer, answer.c.seq == seat.c.answer)
        .outerjoin(withdrawal, withdrawal.c.answer == seat.c.answer)
        .where(
            (answer.c.task != seat.c.task)
            | (answer.c.annotator != seat.c.annotator)
            | (answer.c.kind != "label")
            | withdrawal.c.answer.is_not(None)
        )
    )
    with reading(store.engine) as connection:
        rows = connection.execute(books).all()
        seated_wrongly = connection.execute(wrong_seats).all()
    faults = [f"question {row.task}: answer {row.answer} counts where it does not belong" for row in seated_wrongly]
    for row in rows:
        if (row.seats, row.leased) != (row.sitting, row.out):
            faults.append(
                f"question {row.id}: counts {row.seats} seats and {row.leased} leases, has {row.sitting} and {row.out}"
            )
        if (row.state == "satisfied") != (row.seats == row.needed):
            faults.append(f"question {row.id}: is {row.state} with {row.seats} of {row.needed} labels")
    return faults
