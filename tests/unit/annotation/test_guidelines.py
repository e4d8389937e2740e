"""Every version of the guidelines can be read again, and an answer names the one that its author could read."""

from __future__ import annotations

import pytest

from pddpo_ray.annotation.people.accounts import DEFAULT_GUIDELINES, Campaign, GuidelineVersion, Person, Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.history import History
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.annotation.review.quality import Quality
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue, safety_questions


def answers(queue: FreshQueue, person: Person, said: str) -> None:
    lease = queue.leases.lease(person)
    assert isinstance(lease, Lease)
    queue.answers.answer(person, f"key-of-{person.handle}", lease.id, Submission("label", {"safety": said}))


def test_versions_are_listed_with_author_and_time_and_how_many_answers_saw_them(queue: FreshQueue) -> None:
    campaign, lead = Campaign(queue.store), queue.person("lara", Role.ADMIN)
    assert campaign.versions() == [GuidelineVersion(0, None, None, 0)]
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=3)
    answers(queue, queue.person("ana"), "safe")
    campaign.set_guidelines("# One", by=lead.id)
    first = queue.now_ms
    queue.wait(60)
    answers(queue, queue.person("ben"), "safe")
    answers(queue, queue.person("cem"), "unsafe")
    campaign.set_guidelines("# Two", by="a script")
    assert campaign.versions() == [
        GuidelineVersion(2, "a script", queue.now_ms, 0),
        GuidelineVersion(1, "lara", first, 2),
        GuidelineVersion(0, None, None, 1),
    ]
    assert [campaign.guidelines(number) for number in (0, 1, 2)] == [
        (0, DEFAULT_GUIDELINES),
        (1, "# One"),
        (2, "# Two"),
    ]
    assert campaign.guidelines() == (2, "# Two")
    with pytest.raises(QueueError, match="there is no version 3 of the guidelines") as refused:
        campaign.guidelines(3)
    assert refused.value.problem is Problem.NOT_FOUND


def test_history_and_disagreements_name_the_version_that_an_answer_saw(queue: FreshQueue) -> None:
    status = queue.rounds.open(1, "safety", safety_questions(1), labels_each=2)
    ana, ben = queue.person("ana"), queue.person("ben")
    answers(queue, ana, "safe")
    Campaign(queue.store).set_guidelines("# One", by="test")
    answers(queue, ben, "unsafe")
    history = History(queue.store, queue.rules)
    assert [history.of(one, None, 5)[0].guideline for one in (ana, ben)] == [0, 1]
    (item,) = Quality(queue.store).disagreements(status.id, 0, 5)
    assert {vote["handle"]: vote["guideline"] for vote in item["votes"]} == {"ana": 0, "ben": 1}


def test_leads_read_any_version_and_annotators_the_newest_alone(service: FreshService) -> None:
    admin, lead, annotator = (service.client(role) for role in (Role.ADMIN, Role.LEAD, Role.ANNOTATOR))
    assert admin.put(f"{API}/guidelines", json={"markdown": "# One <b>bold</b>"}).json() == {"version": 1}
    listed = lead.get(f"{API}/guidelines/versions").json()["versions"]
    assert [(one["version"], one["by"], one["answers"]) for one in listed] == [(1, "the admin", 0), (0, None, 0)]
    assert lead.get(f"{API}/guidelines/versions/1").json() == {"version": 1, "markdown": "# One <b>bold</b>"}
    assert lead.get(f"{API}/guidelines/versions/0").json()["markdown"] == DEFAULT_GUIDELINES
    assert is_problem(lead.get(f"{API}/guidelines/versions/9"), 404, "not_found")
    assert is_problem(lead.get(f"{API}/guidelines/versions/x"), 422)
    assert is_problem(annotator.get(f"{API}/guidelines/versions"), 403)
