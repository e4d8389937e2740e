"""People as a part of the run: asks once, waits, resumes, parks, gives up in words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue_labeller import Waiting
from pddpo_ray.errors import DecisionNeeded, ParkedError, RunError
from pddpo_ray.parts.people import People
from pddpo_ray.records import HARM, Pair, Prompt, Response, Verdict
from tests.support.annotation_queue import FreshQueue, people_of, safety_questions

PROMPT = Prompt("p0", (1, 2), "how do i sleep ?")


def response(name: str) -> Response:
    return Response(name, PROMPT, (3,), f"text of {name}", policy_version=4, seed=1)


ITEMS = [response(f"r{n}") for n in range(3)]
PAIRS = [Pair(f"q{n}", response(f"a{n}"), response(f"b{n}")) for n in range(2)]


def labeller(queue: FreshQueue, waiting: Waiting, sleep: Callable[[float], None]) -> People:
    return people_of(queue, waiting, clock=lambda: queue.now_ms, sleep=sleep)


class Crowd:
    """Three people who answer one question each whenever the run sleeps."""

    def __init__(self, queue: FreshQueue, *, answers: int = 10**9) -> None:
        self.queue, self.left, self.given = queue, answers, 0
        self.people = [queue.person(f"crowd {n}") for n in range(3)]

    def __call__(self, seconds: float) -> None:
        self.queue.wait(seconds)
        for person in self.people:
            lease = self.queue.leases.lease(person)
            if not isinstance(lease, Lease) or not self.left:
                continue
            self.left -= 1
            self.given += 1
            if lease.kind == "safety":
                given = {"safety": "unsafe" if "r1" in lease.left else "safe"}
            else:
                side = "left" if "text of a" in lease.left else "right"
                given = {"more_helpful": side, "more_harmful": "tie", "left_safety": "safe", "right_safety": "safe"}
            self.queue.answers.answer(person, f"crowd-{self.given:04d}", lease.id, Submission("label", given))


def never(_: float) -> None:
    raise AssertionError("there was nothing to wait for")


def test_safety_labels_come_back_in_order_from_distinct_people(queue: FreshQueue) -> None:
    numbers: dict[str, float] = {}
    people = people_of(queue, Waiting(1000.0),
        record=numbers.update, clock=lambda: queue.now_ms, sleep=Crowd(queue),
    )  # fmt: skip
    found = people.safety(ITEMS, 3, seed=0)
    assert [labels.response for labels in found] == ITEMS
    assert [labels.labels for labels in found] == [
        (verdict,) * 3 for verdict in (Verdict.SAFE, Verdict.UNSAFE, Verdict.SAFE)
    ]
    assert numbers["people/safety_annotators"] == 3
    assert numbers["people/safety_labels"] == 9
    assert numbers["people/safety_pairwise"] == 1.0


def test_preferences_come_back_whatever_side_the_screen_showed(queue: FreshQueue) -> None:
    found = labeller(queue, Waiting(1000.0), Crowd(queue)).compare(PAIRS, seed=0)
    assert [(item.pair, item.helpful, item.label(HARM)) for item in found] == [
        (pair, Verdict.FIRST, Verdict.ABSTAIN) for pair in PAIRS
    ]


def test_a_round_without_a_pair_asks_nobody(queue: FreshQueue) -> None:
    people = labeller(queue, Waiting(10.0), never)
    assert people.comparisons_arrived([], seed=0)
    assert people.compare([], seed=0) == []
    assert queue.rounds.all() == []


def test_a_run_that_died_while_waiting_asks_nothing_twice(queue: FreshQueue) -> None:
    crowd = Crowd(queue, answers=4)
    calls = 0

    def die_on_the_third(seconds: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        crowd(seconds)

    with pytest.raises(KeyboardInterrupt):
        labeller(queue, Waiting(1000.0), die_on_the_third).safety(ITEMS, 3, seed=0)
    (status,) = queue.rounds.all()
    assert (status.counted, status.wanted) == (4, 9)
    crowd.left = 100
    again = labeller(queue, Waiting(1000.0), crowd).safety(ITEMS, 3, seed=1)
    assert crowd.given == 9
    assert again == labeller(queue, Waiting(1000.0), never).safety(ITEMS, 3, seed=2)
    assert len(queue.rounds.all()) == 1


def test_a_run_parks_and_goes_on_when_the_labels_are_there(queue: FreshQueue) -> None:
    waiting = Waiting(1000.0, park_after_s=0.0)
    with pytest.raises(ParkedError, match=r"0 of 9 labels.*resume"):
        labeller(queue, waiting, never).safety(ITEMS, 3, seed=0)
    crowd = Crowd(queue)
    for _ in range(10):
        crowd(1.0)
    assert len(labeller(queue, waiting, never).safety(ITEMS, 3, seed=0)) == 3
    assert ParkedError.exit_code == 3


@pytest.mark.parametrize(("decide", "error"), [(False, RunError), (True, DecisionNeeded)])
def test_at_the_deadline_the_run_says_what_is_missing_and_what_it_could_mean(
    queue: FreshQueue, decide: bool, error: type[Exception]
) -> None:
    waiting = Waiting(20.0, decide=decide)
    told = r"2 of 9 labels are missing.*if all missing labels said safe.*--batch 2/safety`: extend the deadline"
    with pytest.raises(error, match=told) as caught:
        labeller(queue, waiting, Crowd(queue, answers=7)).safety(ITEMS, 3, seed=0)
    assert "+0." in str(caught.value)
    (status,) = queue.rounds.all()
    assert status.state == "open"
    queue.rounds.extend(status.id, queue.now_ms + 10**6, by="lead")
    crowd = Crowd.__new__(Crowd)
    crowd.queue, crowd.left, crowd.given = queue, 100, 100
    crowd.people = [person for person in queue.people.all() if person.handle.startswith("crowd")]
    assert len(labeller(queue, waiting, crowd).safety(ITEMS, 3, seed=0)) == 3


def test_other_questions_under_the_same_round_stop_the_run(queue: FreshQueue) -> None:
    with pytest.raises(ParkedError):
        labeller(queue, Waiting(10.0, park_after_s=0.0), never).safety(ITEMS, 3, seed=0)
    with pytest.raises(RunError, match="do not agree"):
        labeller(queue, Waiting(10.0), never).safety(ITEMS[:2], 3, seed=0)


def test_a_batch_that_a_lead_stopped_ends_the_run_with_who_why_and_how_it_goes_on(queue: FreshQueue) -> None:
    with pytest.raises(ParkedError):
        labeller(queue, Waiting(10.0, park_after_s=0.0), never).compare(PAIRS, seed=0)
    lead = queue.person("lea", Role.LEAD)
    queue.rounds.cancel(queue.rounds.all()[0].id, by=lead.id, reason="wrong guidelines")
    with pytest.raises(RunError, match=r"lea stopped this batch \(wrong guidelines\).*--batch 2/compare --reopen"):
        labeller(queue, Waiting(10.0), never).compare(PAIRS, seed=0)


def test_pairs_are_open_for_people_while_safety_labels_are_missing_and_a_crash_between_loses_neither(
    queue: FreshQueue,
) -> None:
    crowd = Crowd(queue)
    waiting = labeller(queue, Waiting(1000.0), crowd)
    waiting.open_safety(ITEMS, 3, seed=0)
    assert [(one.purpose, one.counted, one.wanted) for one in queue.rounds.all()] == [("safety", 0, 9)]

    def die(seconds: float) -> None:
        crowd(seconds)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        labeller(queue, Waiting(1000.0), die).compare(PAIRS, seed=0)
    left = {one.purpose: one.missing for one in queue.rounds.all() if one.state == "open"}
    assert left == {"safety": 6, "compare": 2}, "both are open, and safety questions are handed out first"
    resumed = labeller(queue, Waiting(1000.0), crowd)
    resumed.open_safety(ITEMS, 3, seed=0)
    assert len(resumed.compare(PAIRS, seed=0)) == 2
    assert [len(labels.labels) for labels in resumed.safety(ITEMS, 3, seed=0)] == [3, 3, 3]
    assert crowd.given == 9 + 2
    assert {(one.purpose, one.state) for one in queue.rounds.all()} == {("safety", "frozen"), ("compare", "frozen")}


def test_who_can_label_no_answer_twice_compares_pairs_meanwhile(queue: FreshQueue) -> None:
    people = labeller(queue, Waiting(1000.0), never)
    people.open_safety(ITEMS[:1], 2, seed=0)
    with pytest.raises(ParkedError, match="compare: waiting for people, 0 of 2 labels"):
        labeller(queue, Waiting(1000.0, park_after_s=0.0), never).compare(PAIRS, seed=0)
    only = queue.person("only one")
    kinds = []
    for number in range(3):
        lease = queue.leases.lease(only)
        assert isinstance(lease, Lease)
        kinds.append(lease.kind)
        given = {"safety": "safe"}
        if lease.kind == "pair":
            given = {"more_helpful": "left", "more_harmful": "tie", "left_safety": "safe", "right_safety": "safe"}
        queue.answers.answer(only, f"alone-{number:04d}", lease.id, Submission("label", given))
    assert kinds == ["safety", "pair", "pair"]
    assert {one.purpose: one.missing for one in queue.rounds.all()} == {"safety": 1, "compare": 0}


def test_a_batch_opened_early_that_a_lead_ended_or_whose_deadline_passed_is_named_when_it_is_collected(
    queue: FreshQueue,
) -> None:
    people = labeller(queue, Waiting(20.0), Crowd(queue, answers=2))
    people.open_safety(ITEMS, 3, seed=0)
    queue.rounds.cancel(queue.rounds.all()[0].id, by="lead")
    people.open_safety(ITEMS, 3, seed=0)
    assert len(people.compare(PAIRS, seed=0)) == 2
    with pytest.raises(RunError, match="round 2, safety: lead stopped"):
        people.safety(ITEMS, 3, seed=0)


def test_a_deadline_counts_from_the_early_opening(queue: FreshQueue) -> None:
    people = labeller(queue, Waiting(20.0), never)
    people.open_safety(ITEMS, 3, seed=0)
    queue.wait(21.0)
    with pytest.raises(RunError, match="round 2, safety: 9 of 9 labels are missing at the deadline"):
        people.safety(ITEMS, 3, seed=0)


def test_opening_early_waits_for_no_backlog_and_says_what_does_not_agree(
    queue: FreshQueue, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = Crowd(queue)
    queue.rules = replace(queue.rules, backlog_max=3)
    queue.rounds.open(1, "safety", safety_questions(2), labels_each=2)
    people = labeller(queue, Waiting(1000.0), crowd)
    with caplog.at_level("INFO", logger="pddpo_ray.annotation"):
        people.open_safety(ITEMS, 3, seed=0)
    assert "safety waits for them" in caplog.text
    assert len(queue.rounds.all()) == 1
    assert len(people.safety(ITEMS, 3, seed=0)) == 3, "the people catch up, then the batch is opened"
    with pytest.raises(RunError, match="do not agree"):
        people.open_safety(ITEMS[:2], 3, seed=0)


def test_how_long_people_took_does_not_count_what_the_run_waited_for_meanwhile(queue: FreshQueue) -> None:
    numbers: dict[str, float] = {}
    crowd = Crowd(queue)
    people = people_of(queue, Waiting(1000.0),
        record=numbers.update, clock=lambda: queue.now_ms, sleep=crowd,
    )  # fmt: skip
    people.open_safety(ITEMS, 3, seed=0)
    for _ in range(3):
        crowd(1.0)
    queue.wait(500.0)
    people.safety(ITEMS, 3, seed=0)
    assert numbers["people/safety_seconds"] == 3.0
    assert numbers["people/safety_waited_seconds"] < 3.0


def test_a_real_wait_ends_as_soon_as_the_labels_are_there(queue: FreshQueue) -> None:
    crowd = Crowd(queue)
    done = threading.Event()
    people = people_of(queue, Waiting(60.0, poll_s=0.01), clock=lambda: queue.now_ms)
    found: list[object] = []

    def wait() -> None:
        found.extend(people.compare(PAIRS, 0))
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not done.wait(0.02):
        crowd(0.0)
    thread.join()
    assert len(found) == 2
