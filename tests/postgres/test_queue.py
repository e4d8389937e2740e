"""The queue on PostgreSQL: the same promises, with row locks instead of one writer at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import delete, insert, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from pddpo_ray.annotation.queue import Lease, Nothing, Submission
from pddpo_ray.annotation.rules import Outcome, Rules
from pddpo_ray.journal.annotation_schema import answer, seat
from pddpo_ray.journal.audit import imbalances
from pddpo_ray.journal.database import open_database
from tests.annotation_crowd import crowd_keeps_every_promise
from tests.annotation_desk import Desk, create_run, safety_questions

pytestmark = pytest.mark.postgres


def test_processes_on_one_server_lose_nothing_and_count_nothing_twice(database: str, tmp_path: Path) -> None:
    crowd_keeps_every_promise(database, tmp_path, questions=80, needed=3, processes=4)


def test_late_surplus_undo_and_freezing_work_the_same(database: str) -> None:
    engine = open_database(database)
    create_run(engine)
    desk = Desk(engine)
    round_ = desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    slow, quick = desk.person("slow"), desk.person("quick")
    late = desk.queue.lease(slow)
    assert isinstance(late, Lease)
    desk.wait(901)
    lease = desk.queue.lease(quick)
    assert isinstance(lease, Lease)
    safe = Submission("label", {"safety": "safe"})
    desk.queue.answer(quick, "quick", lease.id, safe)
    assert desk.queue.answer(slow, "slow", late.id, safe).outcome is Outcome.SURPLUS
    desk.queue.undo(quick, lease.id)
    desk.queue.release(quick, lease.id)
    assert [entry.key for entry in desk.rounds.freeze(round_.id).answers] == ["slow"]
    assert imbalances(desk.store) == []
    engine.dispose()


def test_the_server_refuses_a_second_seat_and_any_rewriting(database: str) -> None:
    engine = open_database(database)
    create_run(engine)
    desk = Desk(engine)
    desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = desk.person("a")
    lease = desk.queue.lease(person)
    assert isinstance(lease, Lease)
    desk.queue.answer(person, "k", lease.id, Submission("label", {"safety": "safe"}))
    with engine.connect() as connection:
        taken = connection.execute(seat.select()).one()
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(insert(seat).values(**{**taken._mapping, "place": 1, "answer": 7}))
    for change in (update(answer).values(note="x"), delete(answer)):
        with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
            connection.execute(change)
    engine.dispose()


def test_ten_at_once_no_question_twice_and_an_expired_lease_wakes_up(database: str) -> None:
    engine = open_database(database)
    create_run(engine)
    desk = Desk(engine, Rules(leases_each=10, gold_rate=0.0))
    desk.rounds.open(1, "safety", safety_questions(12), labels_each=1)
    slow, quick = desk.person("slow"), desk.person("quick")
    first, rest = desk.queue.leases(slow, 10), desk.queue.leases(quick, 10)
    assert not isinstance(first, Nothing)
    assert not isinstance(rest, Nothing)
    assert len({one.prompt for one in [*first, *rest]}) == len(first) + len(rest) == 12
    desk.wait(901)
    again = desk.queue.leases(slow, 10)
    assert not isinstance(again, Nothing)
    assert {one.id for one in again} >= {one.id for one in first} - {one.id for one in rest}
    assert imbalances(desk.store) == []
    engine.dispose()
