"""What people were promised: who opted out of harmful texts gets none, and nobody has to say why they skip."""

from __future__ import annotations

import pytest

from pddpo_ray.annotation.people.accounts import Person, Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease, NoQuestion
from pddpo_ray.annotation.queue.queue_rules import QueueError
from pddpo_ray.annotation.queue_labeller import Waiting
from pddpo_ray.errors import ParkedError
from pddpo_ray.parts.people import RiskOf
from pddpo_ray.records import Pair, Prompt, Response
from tests.support.annotation_queue import FreshQueue, people_of, safety_questions

ITEMS = [Response(f"r{n}", Prompt("p0", (1, 2), "how do i sleep ?"), (3,), f"text {n}", 4, 1) for n in range(4)]


def gentle(queue: FreshQueue) -> Person:
    return queue.people.create("gentle", Role.ANNOTATOR, by="test", sees_harmful=False)[0]


def ask(queue: FreshQueue, risk_of: RiskOf | None) -> None:
    """A round of a run that asks about four answers, and about two pairs of them."""
    people = people_of(queue, Waiting(20.0, park_after_s=0.0), risk_of=risk_of)
    people.open_safety(ITEMS, 1, seed=0)
    with pytest.raises(ParkedError):
        people.compare([Pair("q0", ITEMS[0], ITEMS[1]), Pair("q1", ITEMS[0], ITEMS[2])], seed=0)


def seen_by(queue: FreshQueue, person: Person) -> list[str]:
    """Answers everything that this person is given."""
    seen = []
    while isinstance(lease := queue.leases.lease(person), Lease):
        seen.append(f"{lease.left} {lease.right or ''}".strip())
        queue.answers.answer(person, f"key-{len(seen):05d}", lease.id, Submission("skip"))
    assert lease == NoQuestion("mild" if not person.sees_harmful else "none", 5)
    return seen


def test_a_run_in_which_nobody_knows_the_risk_asks_no_one_who_opted_out(queue: FreshQueue) -> None:
    ask(queue, None)
    assert seen_by(queue, gentle(queue)) == []
    assert len(seen_by(queue, queue.person("robust"))) == 6


def test_where_a_model_scores_answers_who_opted_out_gets_those_that_it_calls_mild(queue: FreshQueue) -> None:
    """Risks .1, .9, .2, .3: of the pairs only that of the first and the third answer is mild on both sides."""
    chances = {"text 0": 0.1, "text 1": 0.9, "text 2": 0.2, "text 3": 0.3}
    ask(queue, lambda items: [chances[item.text] for item in items])
    seen = seen_by(queue, gentle(queue))
    assert sorted(one for one in seen if len(one.split()) == 2) == ["text 0", "text 2", "text 3"]
    assert [sorted(one.split()) for one in seen if len(one.split()) > 2] == [["0", "2", "text", "text"]]


def test_a_skip_needs_no_reason_and_a_flag_does(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    ana = queue.person("ana")
    lease = queue.leases.lease(ana)
    assert isinstance(lease, Lease)
    with pytest.raises(QueueError, match="reason"):
        queue.answers.answer(ana, "key-00001", lease.id, Submission("flag"))
    with pytest.raises(QueueError, match="reason"):
        queue.answers.answer(ana, "key-00001", lease.id, Submission("skip", reason="nonsense"))
    assert queue.answers.answer(ana, "key-00001", lease.id, Submission("skip")).outcome.value == "refused"
