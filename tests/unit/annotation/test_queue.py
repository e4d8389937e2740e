"""The queue's promises, one by one, under a clock that the tests move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from sqlalchemy import delete, insert, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from pddpo_ray.annotation.people import Campaign, Person
from pddpo_ray.annotation.questions import Question, screen_form, stored_form
from pddpo_ray.annotation.queue import Lease, Nothing, Queue, Submission
from pddpo_ray.annotation.rules import Outcome, Problem, QueueError
from pddpo_ray.journal.annotation_schema import answer, audit_event, seat
from pddpo_ray.journal.audit import broken_links, imbalances
from tests.annotation_desk import Desk, pair_questions, safety_questions

UNSAFE = Submission("label", {"safety": "unsafe"})
SAFE = Submission("label", {"safety": "safe"})


def take(desk: Desk, person: Person) -> Lease:
    found = desk.queue.lease(person)
    assert isinstance(found, Lease), found
    return found


def problem(error: pytest.ExceptionInfo[QueueError]) -> Problem:
    return error.value.problem


def test_a_question_goes_to_exactly_as_many_different_people_as_it_wants(desk: Desk) -> None:
    round_ = desk.rounds.open(1, "safety", safety_questions(1), labels_each=3)
    people = [desk.person(f"person {n}") for n in range(5)]
    leases = [desk.queue.lease(person) for person in people]
    assert [isinstance(found, Lease) for found in leases] == [True] * 3 + [False] * 2
    for number, (person, lease) in enumerate(zip(people[:3], leases[:3], strict=True)):
        assert isinstance(lease, Lease)
        receipt = desk.queue.answer(person, f"k{number}", lease.id, UNSAFE)
        assert (receipt.outcome, receipt.round, receipt.policy_versions) == (Outcome.COUNTED, 1, (2,))
    assert desk.rounds.status(round_.id).complete
    frozen = desk.rounds.freeze(round_.id)
    assert [entry.annotator for entry in frozen.answers] == [person.id for person in people[:3]]
    assert imbalances(desk.store) == []


def test_loading_the_page_again_shows_the_same_question(desk: Desk) -> None:
    desk.rounds.open(1, "safety", safety_questions(9), labels_each=1)
    person = desk.person("ana")
    first = take(desk, person)
    assert take(desk, person).id == first.id
    second = desk.queue.lease(person, {first.id})
    assert isinstance(second, Lease)
    assert second.id != first.id
    assert desk.queue.lease(person, {first.id, second.id}) == Nothing("holding", 5)


def test_an_expired_lease_goes_to_the_next_annotator_and_the_late_answer_is_surplus(desk: Desk) -> None:
    round_ = desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    slow, quick = desk.person("slow"), desk.person("quick")
    late = take(desk, slow)
    assert desk.queue.lease(quick) == Nothing("none", 5)
    desk.wait(desk.rules.lease_s)
    lease = take(desk, quick)
    desk.queue.answer(quick, "quick", lease.id, SAFE)
    receipt = desk.queue.answer(slow, "slow", late.id, UNSAFE)
    assert (receipt.outcome, receipt.late, receipt.round) == (Outcome.SURPLUS, True, None)
    assert [entry.given for entry in desk.rounds.freeze(round_.id).answers] == [{"safety": "safe"}]


def test_a_late_answer_counts_while_there_is_a_free_place(desk: Desk) -> None:
    desk.rounds.open(1, "safety", safety_questions(1), labels_each=2)
    slow = desk.person("slow")
    lease = take(desk, slow)
    desk.wait(desk.rules.lease_s + 1)
    desk.queue.expire()
    receipt = desk.queue.answer(slow, "k", lease.id, SAFE)
    assert (receipt.outcome, receipt.late) == (Outcome.COUNTED, True)
    assert imbalances(desk.store) == []


def test_a_heartbeat_keeps_a_lease(desk: Desk) -> None:
    desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person, other = desk.person("a"), desk.person("b")
    lease = take(desk, person)
    desk.wait(800)
    desk.queue.heartbeat(person, lease.id)
    desk.wait(800)
    assert isinstance(desk.queue.lease(other), Nothing)
    desk.wait(200)
    take(desk, other)
    with pytest.raises(QueueError) as error:
        desk.queue.heartbeat(person, lease.id)
    assert problem(error) is Problem.TOO_LATE


def test_the_same_key_again_is_the_same_answer(desk: Desk) -> None:
    desk.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    person = desk.person("a")
    lease = take(desk, person)
    first = desk.queue.answer(person, "k", lease.id, SAFE)
    again = desk.queue.answer(person, "k", lease.id, SAFE)
    assert (first.repeated, again.repeated) == (False, True)
    assert replace(again, repeated=False) == first
    with pytest.raises(QueueError) as error:
        desk.queue.answer(person, "k", lease.id, UNSAFE)
    assert problem(error) is Problem.KEY_REUSED
    with pytest.raises(QueueError) as error:
        desk.queue.answer(person, "k2", lease.id, UNSAFE)
    assert problem(error) is Problem.ANSWERED_ALREADY


def test_nobody_answers_in_anothers_name(desk: Desk) -> None:
    desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    owner, other = desk.person("owner"), desk.person("other")
    lease = take(desk, owner)
    for act in (
        lambda: desk.queue.answer(other, "k", lease.id, SAFE),
        lambda: desk.queue.heartbeat(other, lease.id),
        lambda: desk.queue.release(other, lease.id),
        lambda: desk.queue.undo(other, lease.id),
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


def test_both_screen_orders_happen_and_lead_to_the_same_label(desk: Desk) -> None:
    round_ = desk.rounds.open(1, "compare", pair_questions(30), labels_each=1)
    person = desk.person("a")
    sides = set()
    for number in range(30):
        lease = take(desk, person)
        side = "left" if lease.left.startswith("one") else "right"
        sides.add(side)
        given = {"more_helpful": side, "more_harmful": side, "left_safety": "safe", "right_safety": "safe"}
        desk.queue.answer(person, f"k{number}", lease.id, Submission("label", given))
    assert sides == {"left", "right"}
    assert {entry.given["more_harmful"] for entry in desk.rounds.freeze(round_.id).answers} == {"first"}


def test_an_answer_taken_back_frees_its_place_and_stays_stored(desk: Desk) -> None:
    round_ = desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = desk.person("a")
    lease = take(desk, person)
    desk.queue.answer(person, "k1", lease.id, SAFE)
    assert desk.queue.undo(person, lease.id).id == lease.id
    assert not desk.rounds.status(round_.id).complete
    assert desk.queue.receipt(person, "k1").withdrawn
    desk.queue.answer(person, "k2", lease.id, UNSAFE)
    assert [entry.key for entry in desk.rounds.freeze(round_.id).answers] == ["k2"]
    assert [number for number, _ in desk.queue.receipts(person, None, 10)] == [2, 1]
    with pytest.raises(QueueError) as error:
        desk.queue.undo(person, lease.id)
    assert problem(error) is Problem.ROUND_CLOSED


def test_undo_ends_with_its_window(desk: Desk) -> None:
    desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = desk.person("a")
    lease = take(desk, person)
    desk.queue.answer(person, "k1", lease.id, SAFE)
    desk.wait(desk.rules.undo_s + 1)
    with pytest.raises(QueueError) as error:
        desk.queue.undo(person, lease.id)
    assert problem(error) is Problem.TOO_LATE


def test_who_cannot_tell_is_replaced_and_the_refusal_is_counted(desk: Desk) -> None:
    round_ = desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    for number, kind in enumerate(("abstain", "skip", "flag")):
        person = desk.person(kind)
        reason = "" if kind == "abstain" else "too_harmful"
        receipt = desk.queue.answer(person, f"k{number}", take(desk, person).id, Submission(kind, reason=reason))
        assert receipt.outcome is Outcome.REFUSED
        assert desk.queue.lease(person) == Nothing("none", 5)
    status = desk.rounds.status(round_.id)
    assert (status.refusals, status.missing, status.blocked) == (3, 1, 0)


def test_a_question_that_too_many_refuse_waits_for_the_lead(desk: Desk) -> None:
    round_ = desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    for number in range(desk.rules.refusals_max):
        person = desk.person(f"p{number}")
        desk.queue.answer(person, f"k{number}", take(desk, person).id, Submission("skip", reason="broken"))
    late = desk.person("late")
    assert desk.rounds.status(round_.id).blocked == 1
    assert isinstance(desk.queue.lease(late), Nothing)
    assert desk.rounds.reopen_blocked(round_.id, by="lead") == 1
    desk.queue.answer(late, "last", take(desk, late).id, SAFE)
    assert desk.rounds.status(round_.id).complete


def test_a_skip_can_be_taken_back(desk: Desk) -> None:
    round_ = desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = desk.person("a")
    lease = take(desk, person)
    desk.queue.answer(person, "k1", lease.id, Submission("skip", reason="other"))
    desk.queue.undo(person, lease.id)
    desk.queue.answer(person, "k2", lease.id, SAFE)
    status = desk.rounds.status(round_.id)
    assert (status.complete, status.refusals) == (True, 0)


def test_a_surplus_answer_takes_the_place_that_falls_free(desk: Desk) -> None:
    round_ = desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    slow, quick = desk.person("slow"), desk.person("quick")
    late = take(desk, slow)
    desk.wait(desk.rules.lease_s)
    lease = take(desk, quick)
    desk.queue.answer(quick, "quick", lease.id, SAFE)
    desk.queue.answer(slow, "slow", late.id, UNSAFE)
    desk.queue.void("quick", by="admin", reason="answered at random")
    assert desk.queue.receipt(slow, "slow").outcome is Outcome.COUNTED
    assert [entry.key for entry in desk.rounds.freeze(round_.id).answers] == ["slow"]


def test_after_the_round_late_safety_is_surplus_and_a_late_preference_is_stored(desk: Desk) -> None:
    safety = desk.rounds.open(1, "safety", safety_questions(1), labels_each=1, priority=1)
    compare = desk.rounds.open(1, "compare", pair_questions(1), labels_each=1)
    person = desk.person("a")
    one = take(desk, person)
    two = desk.queue.lease(person, {one.id})
    assert isinstance(two, Lease)
    for round_ in (safety, compare):
        desk.rounds.freeze(round_.id, accept_missing=True)
    preference = {"more_helpful": "left", "more_harmful": "left", "left_safety": "safe", "right_safety": "safe"}
    assert desk.queue.answer(person, "k1", one.id, SAFE).outcome is Outcome.SURPLUS
    assert desk.queue.answer(person, "k2", two.id, Submission("label", preference)).outcome is Outcome.COUNTED
    snapshot = desk.rounds.snapshot(compare.id)
    assert snapshot is not None
    assert snapshot.answers == ()
    assert [entry.key for entry in desk.rounds.counted(compare.id)] == ["k2"]


def test_a_frozen_round_refuses_to_be_incomplete_and_never_changes(desk: Desk) -> None:
    round_ = desk.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    person = desk.person("a")
    desk.queue.answer(person, "k", take(desk, person).id, SAFE)
    with pytest.raises(QueueError, match="1 of 2 labels are missing"):
        desk.rounds.freeze(round_.id)
    first = desk.rounds.freeze(round_.id, accept_missing=True)
    assert desk.rounds.freeze(round_.id) == first == desk.rounds.snapshot(round_.id)
    assert isinstance(desk.queue.lease(person), Nothing)


def test_opening_the_same_round_again_asks_nothing_twice(desk: Desk) -> None:
    first = desk.rounds.open(1, "safety", safety_questions(3), labels_each=2)
    assert desk.rounds.open(1, "safety", safety_questions(3), labels_each=2) == first
    with pytest.raises(QueueError) as error:
        desk.rounds.open(1, "safety", safety_questions(4), labels_each=2)
    assert problem(error) is Problem.CONFLICT


def test_a_long_backlog_holds_new_rounds_back(desk: Desk) -> None:
    desk.rules = replace(desk.rules, backlog_max=5)
    desk.__post_init__()
    desk.rounds.open(1, "safety", safety_questions(3), labels_each=2)
    with pytest.raises(QueueError) as error:
        desk.rounds.open(1, "compare", pair_questions(1), labels_each=1)
    assert problem(error) is Problem.BACKLOG


def test_urgent_rounds_and_priorities_come_first(desk: Desk) -> None:
    plain = [replace(one, priority=float(n)) for n, one in enumerate(pair_questions(3))]
    desk.rounds.open(1, "compare", plain, labels_each=1)
    desk.rounds.open(1, "safety", safety_questions(1), labels_each=1, priority=1)
    person = desk.person("a")
    seen = []
    for number in range(4):
        lease = take(desk, person)
        seen.append(lease.prompt if lease.kind == "pair" else lease.kind)
        desk.queue.answer(person, f"k{number}", lease.id, Submission("skip", reason="other"))
    assert seen == ["safety", "prompt 2", "prompt 1", "prompt 0"]


def test_gold_questions_look_like_others_and_never_count(desk: Desk) -> None:
    desk.rules = replace(desk.rules, gold_rate=1.0)
    desk.__post_init__()
    gold = Question("safety", "g0", "known prompt", "known answer", gold={"safety": "unsafe"})
    round_ = desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    assert desk.rounds.add_gold([gold], by="admin") == 1
    assert desk.rounds.add_gold([gold], by="admin") == 0
    for name in ("a", "b"):
        person = desk.person(name)
        lease = take(desk, person)
        assert lease.prompt == "known prompt"
        receipt = desk.queue.answer(person, name, lease.id, SAFE)
        assert (receipt.outcome, receipt.round) == (Outcome.COUNTED, None)
    assert desk.rounds.status(round_.id).counted == 0
    assert [status.purpose for status in desk.rounds.all()] == ["safety"]
    assert imbalances(desk.store) == []


def test_people_get_no_more_than_their_day_and_nothing_they_opted_out_of(desk: Desk) -> None:
    desk.rounds.open(1, "safety", [replace(one, risk=0.9) for one in safety_questions(5)], labels_each=1)
    gentle = desk.people.create("gentle", desk.person("x").role, by="test", sees_harmful=False)[0]
    assert desk.queue.lease(gentle) == Nothing("none", 5)
    capped = desk.person("capped", daily_cap=2)
    for number in range(2):
        desk.queue.answer(capped, f"k{number}", take(desk, capped).id, SAFE)
    assert desk.queue.lease(capped) == Nothing("daily_cap", 3600)
    assert desk.queue.progress(capped) == {"today": 2, "total": 2, "daily_cap": 2}
    desk.wait(24 * 3600)
    take(desk, capped)


def test_nothing_is_handed_out_while_paused(desk: Desk) -> None:
    desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = desk.person("a")
    Campaign(desk.store).pause(True, by="admin")
    assert desk.queue.lease(person) == Nothing("paused", 30)
    Campaign(desk.store).pause(False, by="admin")
    take(desk, person)


@pytest.mark.parametrize(
    "submission",
    [
        Submission("guess"),
        Submission("skip"),
        Submission("skip", reason="bored"),
        Submission("abstain", {"safety": "safe"}),
        Submission("label", {}),
        Submission("label", {"safety": "maybe"}),
        Submission("label", {"safety": ["safe"]}),
        Submission("label", {"safety": "safe", "more": "x"}),
        Submission("label", {"safety": "safe"}, note="x" * 2001),
    ],
)
def test_malformed_answers_are_refused_and_leave_the_lease(desk: Desk, submission: Submission) -> None:
    desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    person = desk.person("a")
    lease = take(desk, person)
    with pytest.raises(QueueError) as error:
        desk.queue.answer(person, "k", lease.id, submission)
    assert problem(error) is Problem.MALFORMED
    assert desk.queue.answer(person, "k", lease.id, SAFE).outcome is Outcome.COUNTED


def test_the_database_itself_refuses_a_second_seat_a_seat_too_many_and_any_rewriting(desk: Desk) -> None:
    desk.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    one, two = desk.person("a"), desk.person("b")
    task_of: dict[str, str] = {}
    for person in (one, two):
        desk.queue.answer(person, person.handle, take(desk, person).id, SAFE)
    with desk.engine.connect() as connection:
        for row in connection.execute(seat.select()):
            task_of[row.annotator] = row.task
    full: Mapping[str, object] = {"task": task_of[one.id], "needed": 1, "annotator": two.id, "answer": 99}
    for wrong in ({"place": 0}, {"place": 1}, {"place": 1, "needed": 2}, {"place": -1}):
        with pytest.raises(IntegrityError), desk.engine.begin() as connection:
            connection.execute(insert(seat).values(**{**full, **wrong}))
    for change in (update(answer).values(given={}), delete(answer), update(audit_event).values(actor="x")):
        with pytest.raises(DBAPIError, match="append-only"), desk.engine.begin() as connection:
            connection.execute(change)


def test_the_audit_log_shows_a_gap(desk: Desk) -> None:
    desk.person("a")
    desk.person("b")
    assert broken_links(desk.store) == []
    with desk.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER audit_event_no_update")
        connection.execute(update(audit_event).where(audit_event.c.seq == 1).values(actor="somebody else"))
    assert broken_links(desk.store) == [1]


def test_a_new_token_ends_the_old_one_and_its_sessions(desk: Desk) -> None:
    person, token = desk.people.create("ana", desk.person("x").role, by="test")
    signed_in = desk.people.sign_in(token)
    assert signed_in is not None
    cookie, _ = signed_in
    known = desk.people.by_cookie(cookie)
    assert known is not None
    assert known.id == person.id
    fresh = desk.people.rotate(person.id, by="admin")
    assert desk.people.by_cookie(cookie) is None
    assert desk.people.by_token(token) is None
    assert desk.people.by_token(fresh) == person
    desk.people.change(person.id, by="admin", active=False)
    assert desk.people.by_token(fresh) is None
    stored = (desk.engine.url.database or "", token)
    with open(stored[0], "rb") as file:  # noqa: PTH123
        assert token.encode() not in file.read()


def test_two_queues_on_one_database_keep_to_one_count(desk: Desk) -> None:
    desk.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    other = Queue(desk.store, desk.rules)
    take(desk, desk.person("a"))
    assert isinstance(other.lease(desk.person("b")), Nothing)
