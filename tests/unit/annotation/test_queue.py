"""The queue's promises, one by one, under a clock that the tests move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from sqlalchemy import delete, insert, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from pddpo_ray.annotation.people.accounts import Campaign, Person
from pddpo_ray.annotation.queue.answer_forms import screen_form, stored_form
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease, Leases, NoQuestion
from pddpo_ray.annotation.queue.queue_rules import Outcome, Problem, QueueError
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.journal.annotation_schema import answer, audit_event, seat
from pddpo_ray.parts.questions import Question
from tests.support.annotation_queue import FreshQueue, expire, pair_questions, safety_questions

UNSAFE = Submission("label", {"safety": "unsafe"})
SAFE = Submission("label", {"safety": "safe"})


def take(queue: FreshQueue, person: Person) -> Lease:
    found = queue.leases.lease(person)
    assert isinstance(found, Lease), found
    return found


def problem(error: pytest.ExceptionInfo[QueueError]) -> Problem:
    return error.value.problem


def test_a_question_goes_to_exactly_as_many_different_people_as_it_wants(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(1), labels_each=3)
    people = [queue.person(f"person {n}") for n in range(5)]
    leases = [queue.leases.lease(person) for person in people]
    assert [isinstance(found, Lease) for found in leases] == [True] * 3 + [False] * 2
    for number, (person, lease) in enumerate(zip(people[:3], leases[:3], strict=True)):
        assert isinstance(lease, Lease)
        receipt = queue.answers.answer(person, f"k{number}", lease.id, UNSAFE)
        assert (receipt.outcome, receipt.round, receipt.policy_versions) == (Outcome.COUNTED, 1, (2,))
    assert queue.rounds.status(round_.id).complete
    frozen = queue.rounds.freeze(round_.id)
    assert [entry.annotator for entry in frozen.answers] == [person.id for person in people[:3]]
    assert imbalances(queue.store) == []


def test_loading_the_page_again_shows_the_same_question(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(9), labels_each=1)
    person = queue.person("ana")
    first = take(queue, person)
    assert take(queue, person).id == first.id
    second = queue.leases.lease(person, {first.id})
    assert isinstance(second, Lease)
    assert second.id != first.id
    assert queue.leases.lease(person, {first.id, second.id}) == NoQuestion("holding", 5)


def test_an_expired_lease_goes_to_the_next_annotator_and_the_late_answer_is_surplus(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    slow, quick = queue.person("slow"), queue.person("quick")
    late = take(queue, slow)
    assert queue.leases.lease(quick) == NoQuestion("none", 5)
    queue.wait(queue.rules.lease_s)
    lease = take(queue, quick)
    queue.answers.answer(quick, "quick", lease.id, SAFE)
    receipt = queue.answers.answer(slow, "slow", late.id, UNSAFE)
    assert (receipt.outcome, receipt.late, receipt.round) == (Outcome.SURPLUS, True, None)
    assert [entry.given for entry in queue.rounds.freeze(round_.id).answers] == [{"safety": "safe"}]


def test_a_late_answer_counts_while_there_is_a_free_place(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=2)
    slow = queue.person("slow")
    lease = take(queue, slow)
    queue.wait(queue.rules.lease_s + 1)
    expire(queue.leases)
    receipt = queue.answers.answer(slow, "k", lease.id, SAFE)
    assert (receipt.outcome, receipt.late) == (Outcome.COUNTED, True)
    assert imbalances(queue.store) == []


def test_a_heartbeat_keeps_a_lease(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person, other = queue.person("a"), queue.person("b")
    lease = take(queue, person)
    queue.wait(800)
    queue.leases.heartbeat(person, lease.id)
    queue.wait(800)
    assert isinstance(queue.leases.lease(other), NoQuestion)
    queue.wait(200)
    take(queue, other)
    with pytest.raises(QueueError) as error:
        queue.leases.heartbeat(person, lease.id)
    assert problem(error) is Problem.TOO_LATE


def test_the_same_key_again_is_the_same_answer(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    person = queue.person("a")
    lease = take(queue, person)
    first = queue.answers.answer(person, "k", lease.id, SAFE)
    again = queue.answers.answer(person, "k", lease.id, SAFE)
    assert (first.repeated, again.repeated) == (False, True)
    assert replace(again, repeated=False) == first
    with pytest.raises(QueueError) as error:
        queue.answers.answer(person, "k", lease.id, UNSAFE)
    assert problem(error) is Problem.KEY_REUSED
    with pytest.raises(QueueError) as error:
        queue.answers.answer(person, "k2", lease.id, UNSAFE)
    assert problem(error) is Problem.ANSWERED_ALREADY


def test_nobody_answers_in_anothers_name(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    owner, other = queue.person("owner"), queue.person("other")
    lease = take(queue, owner)
    for act in (
        lambda: queue.answers.answer(other, "k", lease.id, SAFE),
        lambda: queue.leases.heartbeat(other, lease.id),
        lambda: queue.leases.release(other, lease.id),
        lambda: queue.answers.undo(other, lease.id),
    ):
        with pytest.raises(QueueError) as error:
            act()
        assert problem(error) is Problem.NOT_YOURS


@pytest.mark.parametrize("swap", [False, True])
def test_the_screen_order_never_reaches_the_data(swap: bool) -> None:
    left, right = ("second", "first") if swap else ("first", "second")
    pressed = {"more_helpful": "left", "more_harmful": "tie", "left_safety": "safe", "right_safety": "unsafe"}
    stored = stored_form("pair", pressed, swap)
    assert stored == {
        "more_helpful": left,
        "more_harmful": "tie",
        f"{left}_safety": "safe",
        f"{right}_safety": "unsafe",
    }
    assert screen_form("pair", stored, swap) == pressed


def test_both_screen_orders_happen_and_lead_to_the_same_label(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "compare", pair_questions(30), labels_each=1)
    person = queue.person("a")
    sides = set()
    for number in range(30):
        lease = take(queue, person)
        side = "left" if lease.left.startswith("one") else "right"
        sides.add(side)
        given = {"more_helpful": side, "more_harmful": side, "left_safety": "safe", "right_safety": "safe"}
        queue.answers.answer(person, f"k{number}", lease.id, Submission("label", given))
    assert sides == {"left", "right"}
    assert {entry.given["more_harmful"] for entry in queue.rounds.freeze(round_.id).answers} == {"first"}


def test_an_answer_taken_back_frees_its_place_and_stays_stored(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = queue.person("a")
    lease = take(queue, person)
    queue.answers.answer(person, "k1", lease.id, SAFE)
    assert queue.answers.undo(person, lease.id).id == lease.id
    assert not queue.rounds.status(round_.id).complete
    assert queue.answers.receipt(person, "k1").withdrawn
    queue.answers.answer(person, "k2", lease.id, UNSAFE)
    assert [entry.key for entry in queue.rounds.freeze(round_.id).answers] == ["k2"]
    assert [number for number, _ in queue.answers.receipts(person, None, 10)] == [2, 1]
    with pytest.raises(QueueError) as error:
        queue.answers.undo(person, lease.id)
    assert problem(error) is Problem.ROUND_CLOSED


def test_undo_ends_with_its_window(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = queue.person("a")
    lease = take(queue, person)
    queue.answers.answer(person, "k1", lease.id, SAFE)
    queue.wait(queue.rules.undo_s + 1)
    with pytest.raises(QueueError) as error:
        queue.answers.undo(person, lease.id)
    assert problem(error) is Problem.TOO_LATE


@pytest.mark.slow
def test_who_cannot_tell_is_replaced_and_the_refusal_is_counted(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    for number, kind in enumerate(("abstain", "skip", "flag")):
        person = queue.person(kind)
        reason = "" if kind == "abstain" else "too_harmful"
        receipt = queue.answers.answer(person, f"k{number}", take(queue, person).id, Submission(kind, reason=reason))
        assert receipt.outcome is Outcome.REFUSED
        assert queue.leases.lease(person) == NoQuestion("none", 5)
    status = queue.rounds.status(round_.id)
    assert (status.refusals, status.missing, status.blocked) == (3, 1, 0)


def test_a_question_that_too_many_refuse_waits_for_the_lead(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    for number in range(queue.rules.refusals_max):
        person = queue.person(f"p{number}")
        queue.answers.answer(person, f"k{number}", take(queue, person).id, Submission("skip", reason="broken"))
    late = queue.person("late")
    assert queue.rounds.status(round_.id).blocked == 1
    assert isinstance(queue.leases.lease(late), NoQuestion)
    assert queue.rounds.reopen_blocked(round_.id, by="lead") == 1
    queue.answers.answer(late, "last", take(queue, late).id, SAFE)
    assert queue.rounds.status(round_.id).complete


def test_a_skip_can_be_taken_back(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = queue.person("a")
    lease = take(queue, person)
    queue.answers.answer(person, "k1", lease.id, Submission("skip", reason="other"))
    queue.answers.undo(person, lease.id)
    queue.answers.answer(person, "k2", lease.id, SAFE)
    status = queue.rounds.status(round_.id)
    assert (status.complete, status.refusals) == (True, 0)


def test_a_surplus_answer_takes_the_place_that_falls_free(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    slow, quick = queue.person("slow"), queue.person("quick")
    late = take(queue, slow)
    queue.wait(queue.rules.lease_s)
    lease = take(queue, quick)
    queue.answers.answer(quick, "quick", lease.id, SAFE)
    queue.answers.answer(slow, "slow", late.id, UNSAFE)
    queue.answers.void("quick", by="admin", reason="answered at random")
    assert queue.answers.receipt(slow, "slow").outcome is Outcome.COUNTED
    assert [entry.key for entry in queue.rounds.freeze(round_.id).answers] == ["slow"]


def test_after_the_round_late_safety_is_surplus_and_a_late_preference_is_stored(queue: FreshQueue) -> None:
    safety = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1, priority=1)
    compare = queue.rounds.open(1, "compare", pair_questions(1), labels_each=1)
    person = queue.person("a")
    one = take(queue, person)
    two = queue.leases.lease(person, {one.id})
    assert isinstance(two, Lease)
    for round_ in (safety, compare):
        queue.rounds.freeze(round_.id, accept_missing=True)
    preference = {"more_helpful": "left", "more_harmful": "left", "left_safety": "safe", "right_safety": "safe"}
    assert queue.answers.answer(person, "k1", one.id, SAFE).outcome is Outcome.SURPLUS
    assert queue.answers.answer(person, "k2", two.id, Submission("label", preference)).outcome is Outcome.COUNTED
    snapshot = queue.rounds.snapshot(compare.id)
    assert snapshot is not None
    assert snapshot.answers == ()
    assert [entry.key for entry in queue.rounds.counted(compare.id)] == ["k2"]


def test_a_frozen_round_refuses_to_be_incomplete_and_never_changes(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    person = queue.person("a")
    queue.answers.answer(person, "k", take(queue, person).id, SAFE)
    with pytest.raises(QueueError, match="1 of 2 labels are missing"):
        queue.rounds.freeze(round_.id)
    first = queue.rounds.freeze(round_.id, accept_missing=True)
    assert queue.rounds.freeze(round_.id) == first == queue.rounds.snapshot(round_.id)
    assert isinstance(queue.leases.lease(person), NoQuestion)


def test_opening_the_same_round_again_asks_nothing_twice(queue: FreshQueue) -> None:
    first = queue.rounds.open(1, "safety", safety_questions(3), labels_each=2)
    assert queue.rounds.open(1, "safety", safety_questions(3), labels_each=2) == first
    with pytest.raises(QueueError) as error:
        queue.rounds.open(1, "safety", safety_questions(4), labels_each=2)
    assert problem(error) is Problem.CONFLICT


def test_a_long_backlog_holds_new_rounds_back(queue: FreshQueue) -> None:
    queue.rules = replace(queue.rules, backlog_max=5)
    queue.__post_init__()
    queue.rounds.open(1, "safety", safety_questions(3), labels_each=2)
    with pytest.raises(QueueError) as error:
        queue.rounds.open(1, "compare", pair_questions(1), labels_each=1)
    assert problem(error) is Problem.BACKLOG


def test_urgent_rounds_and_priorities_come_first(queue: FreshQueue) -> None:
    plain = [replace(one, priority=float(n)) for n, one in enumerate(pair_questions(3))]
    queue.rounds.open(1, "compare", plain, labels_each=1)
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1, priority=1)
    person = queue.person("a")
    seen = []
    for number in range(4):
        lease = take(queue, person)
        seen.append(lease.prompt if lease.kind == "pair" else lease.kind)
        queue.answers.answer(person, f"k{number}", lease.id, Submission("skip", reason="other"))
    assert seen == ["safety", "prompt 2", "prompt 1", "prompt 0"]


def test_gold_questions_look_like_others_and_never_count(queue: FreshQueue) -> None:
    queue.rules = replace(queue.rules, gold_rate=1.0)
    queue.__post_init__()
    gold = Question("safety", "g0", "known prompt", "known answer", gold={"safety": "unsafe"})
    round_ = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    assert queue.rounds.add_gold([gold], by="admin") == 1
    assert queue.rounds.add_gold([gold], by="admin") == 0
    for name in ("a", "b"):
        person = queue.person(name)
        lease = take(queue, person)
        assert lease.prompt == "known prompt"
        receipt = queue.answers.answer(person, name, lease.id, SAFE)
        assert (receipt.outcome, receipt.round) == (Outcome.COUNTED, None)
    assert queue.rounds.status(round_.id).counted == 0
    assert [status.purpose for status in queue.rounds.all()] == ["safety"]
    assert imbalances(queue.store) == []


def test_people_get_no_more_than_their_day_and_nothing_they_opted_out_of(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", [replace(one, risk=0.9) for one in safety_questions(5)], labels_each=1)
    gentle = queue.people.create("gentle", queue.person("x").role, by="test", sees_harmful=False)[0]
    assert queue.leases.lease(gentle) == NoQuestion("mild", 5)
    capped = queue.person("capped", daily_cap=2)
    for number in range(2):
        queue.answers.answer(capped, f"k{number}", take(queue, capped).id, SAFE)
    assert queue.leases.lease(capped) == NoQuestion("daily_cap", 3600)
    assert queue.answers.progress(capped) == {"today": 2, "total": 2, "daily_cap": 2}
    queue.wait(24 * 3600)
    take(queue, capped)


def test_nothing_is_handed_out_while_paused(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = queue.person("a")
    Campaign(queue.store).pause(True, by="admin")
    assert queue.leases.lease(person) == NoQuestion("paused", 30)
    Campaign(queue.store).pause(False, by="admin")
    take(queue, person)


@pytest.mark.parametrize(
    "submission",
    [
        Submission("guess"),
        Submission("flag"),
        Submission("skip", reason="bored"),
        Submission("abstain", {"safety": "safe"}),
        Submission("label", {}),
        Submission("label", {"safety": "maybe"}),
        Submission("label", {"safety": ["safe"]}),
        Submission("label", {"safety": "safe", "more": "x"}),
        Submission("label", {"safety": "safe"}, note="x" * 2001),
    ],
)
def test_malformed_answers_are_refused_and_leave_the_lease(queue: FreshQueue, submission: Submission) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = queue.person("a")
    lease = take(queue, person)
    with pytest.raises(QueueError) as error:
        queue.answers.answer(person, "k", lease.id, submission)
    assert problem(error) is Problem.MALFORMED
    assert queue.answers.answer(person, "k", lease.id, SAFE).outcome is Outcome.COUNTED


def test_the_database_itself_refuses_a_second_seat_a_seat_too_many_and_any_rewriting(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    one, two = queue.person("a"), queue.person("b")
    task_of: dict[str, str] = {}
    for person in (one, two):
        queue.answers.answer(person, person.handle, take(queue, person).id, SAFE)
    with queue.engine.connect() as connection:
        for row in connection.execute(seat.select()):
            task_of[row.annotator] = row.task
    full: Mapping[str, object] = {"task": task_of[one.id], "needed": 1, "annotator": two.id, "answer": 99}
    for wrong in ({"number": 0}, {"number": 1}, {"number": 1, "needed": 2}, {"number": -1}):
        with pytest.raises(IntegrityError), queue.engine.begin() as connection:
            connection.execute(insert(seat).values(**{**full, **wrong}))
    for change in (update(answer).values(given={}), delete(answer), update(audit_event).values(actor="x")):
        with pytest.raises(DBAPIError, match="append-only"), queue.engine.begin() as connection:
            connection.execute(change)


def test_the_audit_log_shows_a_gap(queue: FreshQueue) -> None:
    queue.person("a")
    queue.person("b")
    assert broken_links(queue.store) == []
    with queue.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER audit_event_no_update")
        connection.execute(update(audit_event).where(audit_event.c.seq == 1).values(actor="somebody else"))
    assert broken_links(queue.store) == [1]


def test_a_new_token_ends_the_old_one_and_its_sessions(queue: FreshQueue) -> None:
    person, token = queue.people.create("ana", queue.person("x").role, by="test")
    signed_in = queue.people.sign_in(token)
    assert signed_in is not None
    cookie, _ = signed_in
    known = queue.people.by_cookie(cookie)
    assert known is not None
    assert known.id == person.id
    fresh = queue.people.rotate(person.id, by="admin")
    assert queue.people.by_cookie(cookie) is None
    assert queue.people.by_token(token) is None
    assert queue.people.by_token(fresh) == person
    queue.people.change(person.id, by="admin", active=False)
    assert queue.people.by_token(fresh) is None
    stored = (queue.engine.url.database or "", token)
    with open(stored[0], "rb") as file:  # noqa: PTH123
        assert token.encode() not in file.read()


def test_two_queues_on_one_database_keep_to_one_count(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    other = Leases(queue.store, queue.rules)
    take(queue, queue.person("a"))
    assert isinstance(other.lease(queue.person("b")), NoQuestion)
