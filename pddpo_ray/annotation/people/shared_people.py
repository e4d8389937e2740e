"""People of several runs that one page serves: one token in every database, and the day counted over all of them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select

from pddpo_ray.annotation.queue.assignment import Leases, Today
from pddpo_ray.journal.annotation_schema import annotator
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.tokens import hashed
from pddpo_ray.journal.transactions import Store


def adopt(token: str, source: Store, target: Store) -> bool:
    """Copies the account of this token from `source` to `target`: the same person, role and limits.

    Returns whether it made the account. It makes none where `target` has the person already (paused or with an earlier
    token, too), or where somebody else has the handle.
    """
    with reading(source.engine) as connection:
        query = select(annotator).where(annotator.c.token_sha256 == hashed(token), annotator.c.active)
        row = connection.execute(query).first()
    if row is None:
        return False

    def add(connection: Connection) -> bool:
        conflict = (annotator.c.id == row.id) | (annotator.c.handle == row.handle)
        if connection.execute(select(annotator.c.id).where(conflict)).first() is not None:
            return False
        values = dict(row._mapping) | {"held": False, "created_ms": target.clock()}
        connection.execute(insert(annotator).values(**values))
        names = {"handle": row.handle, "role": row.role, "from": source.run}
        record_event(connection, target.clock(), row.id, "person.create", row.id, **names)
        return True

    return target.write(add)


def today_in(elsewhere: Sequence[Leases], person_id: str) -> Today:
    """What the person did today in other databases."""
    days = [leases.today(person_id) for leases in elsewhere]
    return Today(sum(day.answers for day in days), sum(day.harmful for day in days))
