"""A lead takes a label out of the count, with a reason, until the run has used it."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from pddpo_ray.annotation.people.accounts import Person, Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.batch_rows import RoundStatus
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.annotation.review.given_labels import GivenLabel, labels_of
from pddpo_ray.journal.annotation_schema import audit_event
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue, pair_questions, safety_questions

ALIKE = {"more_helpful": "tie", "more_harmful": "tie", "left_safety": "safe", "right_safety": "safe"}


def says(queue: FreshQueue, person: Person, said: str = "safe", lease: Lease | None = None) -> str:
    """Answers the next question, or the one of the lease; returns the key of the answer."""
    held = lease or queue.leases.lease(person)
    assert isinstance(held, Lease)
    key, given = f"key-of-{person.handle}", {"safety": said} if held.kind == "safety" else ALIKE
    queue.answers.answer(person, key, held.id, Submission("label", given))
    return key


def listed(queue: FreshQueue, batch: RoundStatus, person: str | None = None) -> list[GivenLabel]:
    return labels_of(queue.store, batch.id, person=person, offset=0, limit=10)


def events(queue: FreshQueue) -> list[tuple[str, str, dict[str, object]]]:
    with queue.engine.connect() as connection:
        query = select(audit_event).where(audit_event.c.action == "answer.void").order_by(audit_event.c.seq)
        return [(row.actor, row.object, row.data) for row in connection.execute(query)]


def test_a_label_of_a_complete_open_batch_is_taken_out_and_somebody_else_is_asked(queue: FreshQueue) -> None:
    """Nobody differs about it: every label that counts can be taken out, not those of disagreements alone."""
    batch = queue.rounds.open(1, "safety", safety_questions(1), labels_each=2)
    lead, ana, ben, cem = (queue.person(name) for name in ("lara", "ana", "ben", "cem"))
    key, _ = says(queue, ana), says(queue, ben)
    assert queue.rounds.status(batch.id).complete
    queue.answers.void(key, by=lead.id, reason="ana told us that she slipped")
    assert not queue.rounds.status(batch.id).complete
    assert events(queue) == [(lead.id, key, {"reason": "ana told us that she slipped"})]
    says(queue, cem, "unsafe")
    newest, second, first = listed(queue, batch)
    assert [one.handle for one in (newest, second, first)] == ["cem", "ben", "ana"]
    assert [one.state for one in (newest, second, first)] == ["counts", "counts", "taken out"]
    assert (first.by, first.reason) == ("lara", "ana told us that she slipped")
    assert [entry.key for entry in queue.rounds.freeze(batch.id).answers] == ["key-of-ben", "key-of-cem"]
    assert imbalances(queue.store) == []


def test_a_label_that_the_run_has_used_stays_and_the_refusal_says_why(queue: FreshQueue) -> None:
    batch = queue.rounds.open(3, "safety", safety_questions(1), labels_each=1)
    key = says(queue, queue.person("ana"))
    assert [one.fixed for one in listed(queue, batch)] == [""]
    queue.rounds.freeze(batch.id)
    why = "round 3, safety is closed and the run has used this label: what it learned from it stays"
    with pytest.raises(QueueError) as refused:
        queue.answers.void(key, by="lead", reason="a slip")
    assert (str(refused.value), refused.value.problem) == (why, Problem.ROUND_CLOSED)
    assert [one.fixed for one in listed(queue, batch)] == [why]
    assert events(queue) == []


def test_a_preference_that_came_too_late_for_the_run_can_still_be_taken_out(queue: FreshQueue) -> None:
    batch = queue.rounds.open(1, "compare", pair_questions(1), labels_each=1)
    ana = queue.person("ana")
    held = queue.leases.lease(ana)
    assert isinstance(held, Lease)
    queue.rounds.freeze(batch.id, accept_missing=True)
    key = says(queue, ana, lease=held)
    assert [(one.state, one.fixed) for one in listed(queue, batch)] == [("counts", "")]
    queue.answers.void(key, by="lead", reason="a slip")
    assert queue.rounds.counted(batch.id) == []
    assert imbalances(queue.store) == []


def test_labels_of_a_stopped_batch_are_taken_out_after_it_is_reopened(queue: FreshQueue) -> None:
    batch = queue.rounds.open(1, "safety", safety_questions(1), labels_each=2)
    key = says(queue, queue.person("ana"))
    queue.rounds.cancel(batch.id, by="lead")
    with pytest.raises(QueueError, match="was stopped, so none of its labels count: reopen it first"):
        queue.answers.void(key, by="lead", reason="a slip")
    queue.rounds.reopen(batch.id, by="lead")
    queue.answers.void(key, by="lead", reason="a slip")
    assert queue.rounds.status(batch.id).counted == 0


def test_a_label_is_taken_out_once_and_never_without_a_reason(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    key = says(queue, queue.person("ana"))
    with pytest.raises(QueueError, match="say why"):
        queue.answers.void(key, by="lead", reason="  ")
    queue.answers.void(key, by="lead", reason="a slip")
    with pytest.raises(QueueError, match="does not count already") as refused:
        queue.answers.void(key, by="lead", reason="a slip")
    assert refused.value.problem is Problem.CONFLICT


def test_labels_are_listed_by_person_page_by_page_without_control_questions(queue: FreshQueue) -> None:
    batch = queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    ana, ben = queue.person("ana"), queue.person("ben")
    held = queue.leases.lease(ana)
    assert isinstance(held, Lease)
    queue.answers.answer(ana, "key-taken", held.id, Submission("label", {"safety": "safe"}, note="hm"))
    queue.answers.undo(ana, held.id)
    says(queue, ana, "unsafe", held)
    says(queue, ben)
    assert [(one.handle, one.state) for one in listed(queue, batch)] == [
        ("ben", "counts"), ("ana", "counts"), ("ana", "taken back")
    ]  # fmt: skip
    assert [one.note for one in listed(queue, batch, ana.id)] == ["", "hm"]
    (second,) = labels_of(queue.store, batch.id, person=None, offset=1, limit=1)
    assert (second.handle, second.given, second.kind) == ("ana", {"safety": "unsafe"}, "safety")


def test_leads_list_and_take_out_labels_through_the_api(service: FreshService) -> None:
    queue = service.queue
    batch = queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    ana = queue.person("ana")
    key = says(queue, ana)
    lead, annotator = service.client(Role.LEAD), service.client(Role.ANNOTATOR)
    path = f"{API}/rounds/{batch.id}/labels"
    (label,) = lead.get(path, params={"person": ana.id}).json()["labels"]
    assert (label["key"], label["state"], label["given"]) == (key, "counts", {"safety": "safe"})
    assert lead.get(path, params={"person": "nobody"}).json()["labels"] == []
    assert is_problem(lead.get(f"{API}/rounds/none/labels"), 404)
    assert is_problem(lead.post(f"{API}/answers/{key}/void", json={"reason": " "}), 422)
    assert is_problem(annotator.post(f"{API}/answers/{key}/void", json={"reason": "mine"}), 403)
    assert lead.post(f"{API}/answers/{key}/void", json={"reason": "a slip"}).json() == {"voided": True}
    (gone,) = lead.get(path).json()["labels"]
    assert lead.get(path).json()["people"] == [{"id": ana.id, "handle": "ana"}], "whose labels count no more, too"
    assert (gone["state"], gone["by"], gone["reason"]) == ("taken out", "the lead", "a slip")
    assert is_problem(lead.post(f"{API}/answers/key-unknown/void", json={"reason": "x"}), 404)
