"""The queue on PostgreSQL: the same promises, with row locks instead of one writer at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import delete, insert, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease, NoQuestion
from pddpo_ray.annotation.queue.queue_rules import Outcome, Rules
from pddpo_ray.annotation.queue_labeller import QueueLabeller, Waiting
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.journal.annotation_schema import ERASED, answer, audit_event, seat
from pddpo_ray.journal.database import open_database
from pddpo_ray.parts.questions import Batch, better_question, number_question, value_of
from pddpo_ray.records import Prompt, Response
from tests.support.annotation_crowd import crowd_keeps_every_promise
from tests.support.annotation_queue import FreshQueue, create_run, safety_questions
from tests.unit.annotation.test_personal_data import erased_keeps_its_promises

pytestmark = pytest.mark.postgres


def test_processes_on_one_server_lose_nothing_and_count_nothing_twice(database: str, tmp_path: Path) -> None:
    crowd_keeps_every_promise(database, tmp_path, questions=80, needed=3, processes=4)


@pytest.mark.full
def test_late_surplus_undo_and_freezing_work_the_same(database: str) -> None:
    engine = open_database(database)
    create_run(engine)
    queue = FreshQueue(engine)
    round_ = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    slow, quick = queue.person("slow"), queue.person("quick")
    late = queue.leases.lease(slow)
    assert isinstance(late, Lease)
    queue.wait(901)
    lease = queue.leases.lease(quick)
    assert isinstance(lease, Lease)
    safe = Submission("label", {"safety": "safe"})
    queue.answers.answer(quick, "quick", lease.id, safe)
    assert queue.answers.answer(slow, "slow", late.id, safe).outcome is Outcome.SURPLUS
    queue.answers.undo(quick, lease.id)
    queue.leases.release(quick, lease.id)
    assert [entry.key for entry in queue.rounds.freeze(round_.id).answers] == ["slow"]
    assert imbalances(queue.store) == []
    engine.dispose()


def test_the_server_refuses_a_second_seat_and_any_rewriting(database: str) -> None:
    engine = open_database(database)
    create_run(engine)
    queue = FreshQueue(engine)
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = queue.person("a")
    lease = queue.leases.lease(person)
    assert isinstance(lease, Lease)
    queue.answers.answer(person, "k", lease.id, Submission("label", {"safety": "safe"}))
    with engine.connect() as connection:
        taken = connection.execute(seat.select()).one()
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(insert(seat).values(**{**taken._mapping, "number": 1, "answer": 7}))
    for change in (update(answer).values(note="x"), delete(answer)):
        with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
            connection.execute(change)
    engine.dispose()


@pytest.mark.full
def test_ten_at_once_no_question_twice_and_an_expired_lease_wakes_up(database: str) -> None:
    engine = open_database(database)
    create_run(engine)
    queue = FreshQueue(engine, Rules(leases_each=10, gold_rate=0.0))
    queue.rounds.open(1, "safety", safety_questions(12), labels_each=1)
    slow, quick = queue.person("slow"), queue.person("quick")
    first, rest = queue.leases.several(slow, 10), queue.leases.several(quick, 10)
    assert not isinstance(first, NoQuestion)
    assert not isinstance(rest, NoQuestion)
    assert len({one.prompt for one in [*first, *rest]}) == len(first) + len(rest) == 12
    queue.wait(901)
    again = queue.leases.several(slow, 10)
    assert not isinstance(again, NoQuestion)
    assert {one.id for one in again} >= {one.id for one in first} - {one.id for one in rest}
    assert imbalances(queue.store) == []
    engine.dispose()


@pytest.mark.full
def test_erasing_a_person_keeps_the_same_promises(database: str) -> None:
    engine = open_database(database)
    create_run(engine)
    erased_keeps_its_promises(FreshQueue(engine))
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(update(answer).values(note="other words"))
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(update(audit_event).values(object="", data=ERASED, actor="x"))
    engine.dispose()


@pytest.mark.full
def test_limits_questions_of_two_answers_and_of_numbers_work_the_same(database: str) -> None:
    """A share of wins with its ties, and numbers within bounds; the order on the screen is drawn, and kept."""
    engine = open_database(database)
    create_run(engine)
    queue = FreshQueue(engine)
    prompt = Prompt("p", (1,), "prompt")
    answers = [Response(f"r{i}", prompt, (2, i), f"answer {i}", 3, 0) for i in range(2)]
    other = Response("o", prompt, (4,), "the reference's", 0, 0)
    waiting = Waiting(deadline_s=600.0, poll_s=0.0)
    labeller = QueueLabeller(engine, queue.store.run, lambda: 1, Rules(gold_rate=0.0), waiting)
    better = [better_question(one, other, asks="# Which tells more?") for one in answers]
    numbers = [number_question(one, (0.0, 10.0), asks="# How loud is it?") for one in answers]
    batches = Batch("measure-answers-tells", better, 2), Batch("measure-answers-loud", numbers, 2)
    assert [labeller.arrived(batch) for batch in batches] == [False, False]
    for person, number in ((queue.person("a"), "2.5"), (queue.person("b"), "7")):
        while isinstance(lease := queue.leases.lease(person), Lease):
            if lease.kind == "number":
                assert lease.bounds == (0.0, 10.0)
                said = {"number": number}
            else:
                mine = "left" if lease.left.startswith("answer") else "right"
                said = {"better": mine if number == "2.5" else "tie"}
            queue.answers.answer(person, f"key-{lease.id}", lease.id, Submission("label", said))
    for batch, mean in zip(batches, (0.75, 4.75), strict=True):
        for given in labeller.ask(batch).by_item(batch).values():
            assert sum(value_of(said) for said, _ in given) == 2 * mean
            assert len({who for _, who in given}) == 2
    assert imbalances(queue.store) == []
    engine.dispose()
