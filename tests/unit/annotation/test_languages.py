"""A question in a language goes to people who know it; where none is stated, to everybody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddpo_ray.annotation.people.accounts import Person, Role
from pddpo_ray.annotation.people.invitations import Invitations
from pddpo_ray.annotation.people.staff import Staff
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease, NoQuestion
from pddpo_ray.annotation.queue.queue_rules import QueueError
from pddpo_ray.annotation.queue_labeller import Waiting, recogniser
from pddpo_ray.errors import UserError
from pddpo_ray.records import Prompt, Response
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue, people_of, safety_questions


def prompts_of(queue: FreshQueue, person: Person) -> set[str]:
    """Answers everything that this person is given; the prompts of it."""
    seen = set()
    while isinstance(lease := queue.leases.lease(person), Lease):
        seen.add(lease.prompt)
        queue.answers.answer(person, f"key-{lease.id}"[:60], lease.id, Submission("label", {"safety": "safe"}))
    return seen


def knows(queue: FreshQueue, handle: str, *codes: str) -> Person:
    return queue.people.create(handle, Role.ANNOTATOR, by="test", languages=codes)[0]


def test_who_said_which_languages_they_know_is_asked_in_those_alone(queue: FreshQueue) -> None:
    german, french, any_ = safety_questions(3)
    asked = [replace(german, language="de"), replace(french, language="fr"), any_]
    queue.rounds.open(1, "safety", asked, labels_each=5)
    assert prompts_of(queue, knows(queue, "greta", "de")) == {"prompt 0", "prompt 2"}
    assert prompts_of(queue, knows(queue, "both", "en", "fr", "de")) == {"prompt 0", "prompt 1", "prompt 2"}
    assert prompts_of(queue, knows(queue, "silent")) == {"prompt 0", "prompt 1", "prompt 2"}
    eve = knows(queue, "eve", "en")
    assert prompts_of(queue, eve) == {"prompt 2"}
    assert isinstance(queue.leases.lease(eve), NoQuestion)
    assert queue.people.change(eve.id, by="test", languages=["fr"]).languages == ("fr",)
    assert prompts_of(queue, replace(eve, languages=("fr",))) == {"prompt 1"}


def test_control_questions_keep_to_languages_too(queue: FreshQueue) -> None:
    queue.leases._rules = replace(queue.rules, gold_rate=0.5)  # everybody's next one is a control question
    gold = [
        replace(one, gold={"safety": "safe"}, language=code)
        for one, code in zip(safety_questions(2), ("de", "fr"), strict=True)
    ]
    queue.rounds.add_gold(gold, by="test")
    assert prompts_of(queue, knows(queue, "greta", "de")) == {"prompt 0"}


def test_a_question_in_a_language_that_nobody_knows_is_lacking_people(queue: FreshQueue) -> None:
    knows(queue, "eve", "en")
    status = queue.rounds.open(1, "safety", [replace(safety_questions(1)[0], language="de")], labels_each=1)
    assert Staff(queue.store, queue.rules).lacking(status).startswith("1 more person is needed")
    knows(queue, "greta", "de")
    assert Staff(queue.store, queue.rules).lacking(status) == ""


@pytest.mark.slow
def test_a_link_carries_limits_and_languages_and_the_api_refuses_what_is_no_language(
    queue: FreshQueue, service: FreshService
) -> None:
    desk = Invitations(queue.store)
    code = desk.make("ana", Role.ANNOTATOR, by="admin", harmful_cap=7, languages=["de", "en", "de"])
    person, _ = desk.accept(code)
    assert (person.harmful_cap, person.languages) == (7, ("de", "en"))
    with pytest.raises(QueueError, match="two or three letters"):
        desk.make("ben", Role.ANNOTATOR, by="admin", languages=["German"])
    admin = service.client(Role.ADMIN)
    assert is_problem(admin.post(f"{API}/invitations", json={"handle": "ben", "languages": ["German"]}), 422)
    body = {"handle": "ben", "languages": ["fr"], "harmful_cap": 3, "page": "http://127.0.0.1:8790"}
    made = admin.post(f"{API}/invitations", json=body).json()
    assert made["link"] == f"http://127.0.0.1:8790/#invite={made['code']}"
    taken = service.client().post(f"{API}/invitation", json={"code": made["code"]}).json()
    ben = next(one for one in admin.get(f"{API}/people").json()["people"] if one["id"] == taken["id"])
    assert (ben["harmful_cap"], ben["languages"]) == (3, ["fr"])
    changed = admin.patch(f"{API}/people/{ben['id']}", json={"languages": []})
    assert changed.json()["languages"] == []


@pytest.mark.slow
def test_a_run_recognises_the_language_of_its_prompts_among_those_that_it_names(queue: FreshQueue) -> None:
    language_of = recogniser(["de", "en"])
    assert language_of("Wie schlafe ich heute Nacht besser?") == "de"
    assert language_of("How do I sleep better tonight?") == "en"
    assert language_of("12 + 30 = ?") is None
    with pytest.raises(UserError, match=r"people\.languages"):
        recogniser(["xx"])
    asked = Prompt("p0", (1,), "Wie schlafe ich heute Nacht besser?")
    waiting, opened = Waiting(deadline_s=60), []
    labeller = people_of(queue, waiting, 1, language_of=language_of)
    labeller.open_safety([Response("r0", asked, (2,), "Tee trinken.", 1, 0)], 1, 0)
    opened = [knows(queue, "eve", "en"), knows(queue, "greta", "de")]
    assert [isinstance(queue.leases.lease(one), Lease) for one in opened] == [False, True]
