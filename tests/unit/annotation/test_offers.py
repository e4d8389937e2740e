"""Which question is handed out, and that finding it is a seek in an index, however many wait."""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, select
from sqlalchemy.exc import IntegrityError

from pddpo_ray.annotation.people.accounts import Person
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease, NoQuestion
from pddpo_ray.annotation.queue.assignment_statements import HOLD
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.errors import UserError
from pddpo_ray.journal import transactions
from pddpo_ray.journal.annotation_schema import answer, guideline, lease, question_round, seat, task
from pddpo_ray.parts.questions import Question
from tests.support.annotation_queue import FreshQueue, expire, pair_questions, safety_questions

SAFE = Submission("label", {"safety": "safe"})


def with_rules(queue: FreshQueue, **rules: Any) -> FreshQueue:
    return FreshQueue(queue.engine, replace(queue.rules, **rules))


def several(queue: FreshQueue, person: Person, count: int, holding: tuple[str, ...] = ()) -> list[Lease]:
    found = queue.leases.several(person, count, holding)
    assert not isinstance(found, NoQuestion), found
    return found


@contextmanager
def statements(queue: FreshQueue) -> Iterator[list[str]]:
    """What SQLite is asked meanwhile, with the values filled in."""
    heard: list[str] = []
    with queue.engine.connect() as connection:
        driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    driver.set_trace_callback(lambda text: heard.append(text.replace("<= Inf", "<= 9e999")))
    yield heard
    driver.set_trace_callback(None)


@pytest.mark.parametrize("sees_harmful", [True, False])
def test_a_claim_reads_no_table_from_end_to_end_and_sorts_nothing(queue: FreshQueue, sees_harmful: bool) -> None:
    queue = with_rules(queue, leases_each=100)
    queue.rounds.open(1, "safety", safety_questions(20), labels_each=3)
    person = queue.people.create("a", queue.person("x").role, by="test", sees_harmful=sees_harmful, daily_cap=99)[0]
    held: list[str] = []
    with statements(queue) as heard:
        while isinstance(found := queue.leases.lease(person, held), Lease):
            held.append(found.id)
    assert len(held) == 20
    with queue.engine.connect() as connection:
        plans = [
            connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all()
            for text in heard
            if text.startswith(("SELECT", "WITH", "UPDATE"))
        ]
    steps = {str(step.detail) for plan in plans for step in plan}
    assert {step for step in steps if "ix_task_offer" in step} == {
        "SEARCH waiting USING INDEX ix_task_offer (question_round=? AND balance<?)",
        "SEARCH task USING INDEX ix_task_offer (question_round=? AND balance<?)",
        "SEARCH task USING INDEX ix_task_offer (question_round=? AND balance=? AND priority=? AND id<?)",
    }
    assert [step for step in steps if "TEMP B-TREE" in step or step.startswith(("SCAN task", "SCAN lease"))] == []


def test_a_claim_of_ten_is_one_transaction_and_each_of_them_an_ordinary_lease(queue: FreshQueue) -> None:
    queue = with_rules(queue, leases_each=12)
    queue.rounds.open(1, "safety", safety_questions(4), labels_each=2, priority=1)
    queue.rounds.open(1, "compare", pair_questions(30), labels_each=1)
    person = queue.person("a")
    commits: list[object] = []
    event.listen(queue.engine, "commit", commits.append)
    found = several(queue, person, 10)
    assert len(commits) == 1
    assert [one.kind for one in found] == ["safety"] * 4 + ["pair"] * 6
    held = tuple(one.id for one in found)
    assert len(set(held)) == len({(one.kind, one.prompt) for one in found}) == 10
    assert [one.id for one in several(queue, person, 3)] == list(held[:3]), "a page that was loaded again loses nothing"
    assert len(several(queue, person, 10, held)) == 2, "no more than the rules put in one person's hands"
    assert imbalances(queue.store) == []


def test_a_claim_of_ten_keeps_the_daily_cap_and_the_share_of_control_questions(queue: FreshQueue) -> None:
    queue = with_rules(queue, leases_each=100, gold_rate=0.3, gold_first=0)
    queue.rounds.open(1, "safety", safety_questions(200), labels_each=1)
    gold = [Question("safety", f"g{n}", f"known {n}", "answer", gold={"safety": "safe"}) for n in range(100)]
    queue.rounds.add_gold(gold, by="admin")
    assert len(several(queue, queue.person("capped", daily_cap=7), 10)) == 7
    people = [queue.person(f"p{n}") for n in range(10)]
    known = sum(one.prompt.startswith("known") for person in people for one in several(queue, person, 10))
    assert 15 <= known <= 45


def test_everybody_starts_elsewhere_and_at_the_same_place_after_a_restart(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(500), labels_each=1)
    firsts = []
    for name in ("ana", "ben", "eva"):
        person = queue.person(name)
        found = several(queue, person, 1)[0]
        queue.leases.release(person, found.id)
        assert [one.prompt for one in several(FreshQueue(queue.engine), person, 1)] == [found.prompt]
        firsts.append(found.prompt)
    assert len(set(firsts)) == 3


def test_who_did_a_lot_alone_is_still_offered_what_is_left(queue: FreshQueue) -> None:
    """Questions that lack a second opinion lie before the untouched ones, and this person can do nothing for them."""
    queue.rounds.open(1, "safety", safety_questions(40), labels_each=2)
    person = queue.person("alone")
    for number in range(40):
        queue.answers.answer(person, f"k{number}", several(queue, person, 1)[0].id, SAFE)
    assert queue.leases.lease(person) == NoQuestion("none", 5)
    assert isinstance(queue.leases.lease(queue.person("next")), Lease)


def books(queue: FreshQueue) -> list[tuple[Any, int]]:
    """Every question with its balance, counted anew from seats and leases."""
    with queue.engine.connect() as connection:
        seats = list(connection.execute(select(seat.c.task)).scalars())
        out = list(connection.execute(select(lease.c.task).where(lease.c.state == "leased")).scalars())
        rows = connection.execute(select(task, question_round.c.priority.label("urgency")).join(question_round)).all()
    return [
        (row, seats.count(row.id) + out.count(row.id) - row.needed if row.state == "open" and row.gold is None else 0)
        for row in rows
    ]


def most_urgent(queue: FreshQueue, person: Person) -> set[str]:
    """The questions of which one must come next, by brute force."""
    with queue.engine.connect() as connection:
        mine = (lease.c.annotator == person.id) & lease.c.state.in_(("leased", "answered"))
        known = set(connection.execute(select(lease.c.task).where(mine)).scalars())
    left = {
        row.id: (row.urgency, balance, row.priority)
        for row, balance in books(queue)
        if balance < 0 and row.id not in known
    }
    return {id_ for id_, key in left.items() if key == max(left.values())}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_balance_stays_right_and_the_most_urgent_question_is_offered(queue: FreshQueue, seed: int) -> None:
    """Random claims, answers, skips, releases, expiries, undo, void, blocking and reopening against counting anew."""
    queue = with_rules(queue, refusals_max=2, leases_each=3, undo_s=1e6, seed=seed)
    draw = random.Random(seed)
    questions = [replace(one, priority=float(number % 3)) for number, one in enumerate(safety_questions(6))]
    batch = queue.rounds.open(1, "safety", questions, labels_each=2, priority=1).id
    queue.rounds.open(1, "compare", pair_questions(3), labels_each=3)
    people = [queue.person(f"p{number}") for number in range(4)]
    held: dict[str, tuple[Person, Lease]] = {}

    def claim(person: Person) -> None:
        expire(queue.leases)
        expected = most_urgent(queue, person)
        mine = [id_ for id_, (holder, _) in held.items() if holder is person]
        found = queue.leases.lease(person, mine)
        if isinstance(found, Lease):
            held[found.id] = person, found
            with queue.engine.connect() as connection:
                assert connection.execute(select(lease.c.task).where(lease.c.id == found.id)).scalar() in expected
        else:
            assert found.reason == "holding" or expected == set()

    def reply(person: Person) -> None:
        id_, (holder, asked) = draw.choice(list(held.items()))
        pair = {"more_helpful": "left", "more_harmful": "tie", "left_safety": "safe", "right_safety": "safe"}
        given = {"safety": "safe"} if asked.kind == "safety" else pair
        submission = Submission("skip", reason="other") if draw.random() < 0.4 else Submission("label", given)
        queue.answers.answer(holder, f"k{draw.random()}", id_, submission)

    def give_back(person: Person) -> None:
        id_, (holder, _) = draw.choice(list(held.items()))
        queue.leases.release(holder, id_)

    def think_again(person: Person) -> None:
        id_, (holder, _) = draw.choice(list(held.items()))
        queue.answers.undo(holder, id_)

    def void(person: Person) -> None:
        with queue.engine.connect() as connection:
            keys = list(connection.execute(select(answer.c.key).where(answer.c.kind == "label")).scalars())
        queue.answers.void(draw.choice(keys), by="admin", reason="test")

    def wait(person: Person) -> None:
        queue.wait(500)
        expire(queue.leases)

    def reopen(person: Person) -> None:
        queue.rounds.reopen_blocked(batch, by="lead")

    acts = [claim] * 5 + [reply] * 4 + [think_again] * 3 + [give_back, void, wait, reopen]
    done = set()
    for _ in range(150):
        act = draw.choice(acts)
        try:
            act(draw.choice(people))
            done.add(act)
        except (QueueError, IndexError):
            pass  # there was nothing to answer, to give back or to undo
        assert [row.balance for row, _ in books(queue)] == [balance for _, balance in books(queue)]
    assert done == set(acts)
    assert imbalances(queue.store) == []


def test_requests_that_wait_for_the_disk_are_committed_together_and_fail_alone(queue: FreshQueue) -> None:
    """While the first holds the database seven more queue up; those that fail are undone, the others are stored."""
    commits: list[object] = []
    event.listen(queue.engine, "commit", commits.append)
    begun, go_on = threading.Event(), threading.Event()

    def add(number: int) -> int:
        def work(connection: Connection) -> int:
            begun.set()
            go_on.wait()
            row = {"run": "demo", "version": number, "markdown": "", "by": "", "at_ms": 0}
            connection.execute(insert(guideline).values(**row))
            if number % 2:
                raise QueueError(Problem.CONFLICT, str(number))
            return number

        return queue.store.write(work)

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(add, 0)]
        begun.wait()
        futures += [pool.submit(add, number) for number in range(1, 8)]
        while len(queue.store._waiting) < 7:
            time.sleep(0.01)
        go_on.set()
    assert len(commits) == 2
    assert [future.result() for future in futures[::2]] == [0, 2, 4, 6]
    assert [str(future.exception()) for future in futures[1::2]] == ["1", "3", "5", "7"]
    with queue.engine.connect() as connection:
        assert list(connection.execute(select(guideline.c.version)).scalars()) == [0, 2, 4, 6]


def test_who_gives_up_waiting_is_not_waited_for(queue: FreshQueue) -> None:
    """Ctrl-C while the main thread queues behind another: those who come after it still get their turn."""
    begun, go_on = threading.Event(), threading.Event()

    def lead(connection: Connection) -> None:
        begun.set()
        go_on.wait(60)

    def interrupt() -> None:
        while not queue.store._waiting:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(queue.store.write, lead)
        begun.wait(60)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist's workers ignore it
        pool.submit(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                queue.store.write(lambda connection: None)
        finally:
            signal.signal(signal.SIGINT, before)
        follower = pool.submit(queue.store.write, lambda connection: "stored")
        go_on.set()
        assert follower.result(60) == "stored"
        leader.result(60)


def interrupted_write(queue: FreshQueue, instant: int) -> bool:
    """A write of the main thread that Ctrl-C meets at an instruction of the queue's own code. -> whether it did"""
    left = iter(range(instant, -1, -1))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != transactions.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(left, None) == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        queue.store.write(lambda connection: None)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("behind", [False, True], ids=["first", "behind another"])
def test_at_no_instant_does_ctrl_c_in_the_main_thread_hold_up_the_others(queue: FreshQueue, behind: bool) -> None:
    """It meets the first instruction of a write, the second, ...: who writes after it still gets a turn."""
    instant, stored = 0, []
    while True:
        begun, go_on = threading.Event(), threading.Event()

        def lead(connection: Connection, begun: threading.Event = begun, go_on: threading.Event = go_on) -> None:
            begun.set()
            go_on.wait(60)

        def let_go(go_on: threading.Event = go_on) -> None:
            while not queue.store._waiting and not go_on.is_set():
                time.sleep(0.001)
            go_on.set()

        others = [threading.Thread(target=target, daemon=True) for target in (lambda: queue.store.write(lead), let_go)]
        if behind:
            others[0].start()
            begun.wait(60)
            others[1].start()
        met = interrupted_write(queue, instant)
        go_on.set()
        after = threading.Thread(target=lambda: stored.append(queue.store.write(lambda _: "stored")), daemon=True)
        after.start()
        after.join(20)
        assert len(stored) == instant + 1, f"interrupted at instruction {instant}"
        if not met:
            break
        instant += 1
    assert instant > 10


def test_a_full_disk_in_the_middle_stores_nothing_of_anybody(queue: FreshQueue) -> None:
    """SQLite gives such a transaction up as a whole; what comes after must not be stored on its own."""

    def work(connection: Connection) -> None:
        connection.execute(insert(guideline).values(run="demo", version=1, markdown="", by="", at_ms=0))
        connection.exec_driver_sql("ROLLBACK")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        queue.store.write(work)
    with queue.engine.connect() as connection:
        assert connection.execute(select(guideline.c.version)).first() is None
    queue.person("and on it goes")


def test_a_database_that_may_not_be_written_is_a_users_error(queue: FreshQueue) -> None:
    @event.listens_for(queue.engine, "checkout")
    def only_read(connection: Any, *_: object) -> None:
        connection.execute("PRAGMA query_only=ON")

    with pytest.raises(UserError, match=r"journal sqlite:.* cannot be written: .*readonly"):
        queue.person("nobody")


def test_a_prepared_statement_fails_as_any_other_does(queue: FreshQueue) -> None:
    held = {"id": "l", "task": "none", "annotator": "nobody", "state": "leased", "swap": False, "guideline": 0}
    with pytest.raises(IntegrityError, match="FOREIGN KEY"), queue.engine.begin() as connection:
        HOLD["sqlite"].run(connection, **held, leased_ms=0, expires_ms=0)
