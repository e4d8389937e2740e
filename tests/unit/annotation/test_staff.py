"""A run says when it has too few people for what it asks, and what it waits for."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.people.staff import Staff
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue_labeller import Waiting, waiting_line
from pddpo_ray.cli.output import spoken
from pddpo_ray.cli.runs.crowd import crowd_beside
from pddpo_ray.config import load
from pddpo_ray.errors import ParkedError, RunError, UserError
from pddpo_ray.records import Prompt, Response
from tests.support.annotation_queue import FreshQueue, people_of, safety_questions

ITEMS = [Response(f"r{n}", Prompt("p0", (1, 2), "how do i sleep ?"), (3,), f"text {n}", 4, 1) for n in range(2)]


def answer_all(queue: FreshQueue, handle: str, role: Role = Role.ANNOTATOR) -> None:
    person = queue.person(handle, role)
    while isinstance(lease := queue.leases.lease(person), Lease):
        queue.answers.answer(person, f"{handle}-{lease.id}"[:60], lease.id, Submission("label", {"safety": "safe"}))


def test_two_people_cannot_give_three_labels_each_and_the_run_says_whom_it_lacks(queue: FreshQueue) -> None:
    staff = Staff(queue.store, queue.rules)
    status = queue.rounds.open(1, "safety", safety_questions(2), labels_each=3)
    assert "3 more people are needed: 2 questions wait" in staff.lacking(status)
    answer_all(queue, "ana")
    answer_all(queue, "ben")
    assert staff.lacking(status).startswith("1 more person is needed: 2 questions wait for labels that nobody here")
    assert "1 more person is needed" in waiting_line(
        queue.rounds.status(status.id), queue.now_ms, staff.lacking(status)
    )
    carla = queue.person("carla")
    assert staff.lacking(status) == "", "she can give what is missing"
    queue.people.change(carla.id, by="test", active=False)
    assert staff.lacking(status)
    answer_all(queue, "dora")
    assert staff.lacking(status) == ""


def test_an_admin_counts_once_they_have_answered_and_a_skip_is_no_label(queue: FreshQueue) -> None:
    staff = Staff(queue.store, queue.rules)
    status = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    admin = queue.person("admin", Role.ADMIN)
    assert staff.lacking(status)
    lease = queue.leases.lease(admin)
    assert isinstance(lease, Lease)
    queue.answers.answer(admin, "key-00001", lease.id, Submission("skip", reason="other"))
    assert staff.lacking(status), "who skipped a question is not asked it again"
    second = queue.rounds.open(2, "safety", safety_questions(1), labels_each=1)
    assert staff.lacking(second) == ""


def test_who_opted_out_of_harmful_texts_counts_only_below_the_risk(queue: FreshQueue) -> None:
    staff = Staff(queue.store, queue.rules)
    questions = [replace(one, risk=risk) for one, risk in zip(safety_questions(2), (0.2, 0.9), strict=True)]
    status = queue.rounds.open(1, "safety", questions, labels_each=1)
    queue.people.create("gentle", Role.ANNOTATOR, by="test", sees_harmful=False)
    assert staff.lacking(status).startswith("1 more person is needed: 1 question waits")


@pytest.mark.slow
def test_a_waiting_run_says_each_minute_what_it_waits_for(queue: FreshQueue) -> None:
    assert Waiting(1.0).report_s == 60.0
    said: list[str] = []
    people = people_of(queue, Waiting(20.0, report_s=0.0),
        clock=lambda: queue.now_ms, sleep=queue.wait,
    )  # fmt: skip
    queue.person("ana")
    with spoken(said.append), pytest.raises(RunError, match="1 more person is needed"):
        people.safety(ITEMS, 2, seed=0)
    assert len(said) == 21
    assert said[0].startswith("round 2, safety: waiting for people, 0 of 4 labels")
    assert "1 more person is needed" in said[0]
    logger = logging.getLogger("pddpo_ray.annotation")
    assert logger.handlers == []
    assert logger.level == logging.NOTSET


def test_a_parked_run_says_whom_it_lacks(queue: FreshQueue) -> None:
    people = people_of(queue, Waiting(20.0, park_after_s=0.0))
    with pytest.raises(ParkedError, match="3 more people are needed"):
        people.safety(ITEMS, 3, seed=0)


def test_fewer_simulated_people_than_labels_each_are_refused_before_anything_starts(tmp_path: Path) -> None:
    config = load("tabular", ["feedback.kind=people", "limits.cost.labels_each=3"])
    with (
        pytest.raises(UserError, match="--simulate 2: every answer needs 3 labels"),
        crowd_beside(config, tmp_path, port=1, people=2, error=0.0),
    ):
        pass
