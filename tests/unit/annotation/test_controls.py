"""Control questions: nonsense is refused, statistics are theirs, and one can be taken out of use."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.controls import Controls, Fate
from pddpo_ray.annotation.queue.queue_rules import QueueError
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.config import load
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Question
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue

SAFETY = Question("safety", "g", "p", "f", gold={"safety": "unsafe"}, risk=0.0)
PAIR = Question("pair", "g", "p", "f", "s", gold={"more_harmful": "first"}, risk=0.0)


@pytest.mark.parametrize(
    ("question", "gold", "said"),
    [
        (SAFETY, {"safety": "nonsense"}, "safety is safe or unsafe, not 'nonsense'"),
        (SAFETY, {"more_helpful": "first"}, "a safety question asks safety, not more_helpful"),
        (PAIR, {"safety": "safe"}, "a pair question asks more_helpful"),
        (PAIR, {"more_harmful": "left"}, "more_harmful is first or second or tie, not 'left'"),
        (
            PAIR,
            {"more_harmful": "first", "first_safety": "safe", "second_safety": "unsafe"},
            "calls the only safe",
        ),
        (SAFETY, {}, "needs its known answer"),
    ],
)
def test_a_known_answer_that_is_none_is_refused(
    queue: FreshQueue, question: Question, gold: dict[str, str], said: str
) -> None:
    with pytest.raises(QueueError, match=said):
        queue.rounds.add_gold([question, replace(question, item="h", gold=gold)], by="admin")
    assert Controls(queue.store).all() == [], "nothing is added where one is wrong"


def test_what_nobody_got_is_deleted_and_what_somebody_got_is_retired_with_its_numbers(service: FreshService) -> None:
    queue = service.queue
    queue = FreshQueue(queue.engine, replace(queue.rules, gold_rate=0.999999), queue.now_ms)
    queue.rounds.add_gold([replace(SAFETY, item=f"g{n}", prompt=f"gold {n}") for n in range(3)], by="admin")
    ana, seen = queue.person("ana"), []
    for number, label in enumerate(("unsafe", "safe")):
        lease = queue.leases.lease(ana)
        assert isinstance(lease, Lease)
        seen.append(lease.prompt)
        queue.answers.answer(ana, f"key-{number:05d}", lease.id, Submission("label", {"safety": label}))
    admin = service.client(Role.ADMIN)
    listed = {one["prompt"]: one for one in admin.get(f"{API}/gold").json()["gold"]}
    assert [(listed[name]["answered"], listed[name]["right"]) for name in seen] == [(1, 1), (1, 0)]
    (unseen,) = set(listed) - set(seen)
    assert admin.delete(f"{API}/gold/{listed[unseen]['id']}").json() == {"deleted": True}
    assert admin.delete(f"{API}/gold/{listed[seen[0]]['id']}").json() == {"deleted": False}
    assert is_problem(admin.delete(f"{API}/gold/{listed[unseen]['id']}"), 404)
    left = {one["prompt"]: one["retired"] for one in admin.get(f"{API}/gold").json()["gold"]}
    assert left == {seen[0]: True, seen[1]: False}
    given = queue.leases.lease(queue.person("ben"))
    assert isinstance(given, Lease)
    assert given.prompt == seen[1], "a retired one is asked no more"
    queue.rounds.add_gold([replace(SAFETY, item="later", prompt="later")], by="admin")
    assert len(admin.get(f"{API}/gold").json()["gold"]) == 3
    assert imbalances(queue.store) == []


def line(item: str, **other: object) -> str:
    shown = {"kind": "safety", "item": item, "prompt": f"gold {item}", "first": "f", "gold": {"safety": "safe"}}
    return json.dumps(shown | other)


def test_a_preview_says_of_every_line_what_an_import_does_with_it_and_adds_nothing(service: FreshService) -> None:
    queue, admin = service.queue, service.client(Role.ADMIN)
    admin.post(f"{API}/gold", json={"questions": [json.loads(line("retired"))]})
    often = FreshQueue(queue.engine, replace(queue.rules, gold_rate=0.999999), queue.now_ms)
    assert isinstance(often.leases.lease(queue.person("ana")), Lease)
    Controls(queue.store).retire(Controls(queue.store).all()[0].id, by="admin")
    assert admin.post(f"{API}/gold", json={"questions": [json.loads(line("there"))]}).json() == {"added": 1}
    before = Controls(queue.store).all()
    lines = [
        line("new"), "", line("new"), line("there"), line("there", prompt="another"), line("retired"),
        line("pair", kind="pair", second="s", gold={"more_harmful": "first"}), line("lonely", kind="pair"),
        line("gold", gold={"safety": "no"}), line("colour", colour="red"), "{", "[" * 100_000, "7",
    ]  # fmt: skip
    found = admin.post(f"{API}/gold/preview", json={"lines": lines}).json()
    assert [(one["line"], one["fate"], one["why"]) for one in found["rows"]] == [
        (1, "added", ""),
        (3, "refused", "item new stands in the file twice"),
        (4, "there", "it is there already"),
        (5, "refused", "another control question has the item there: give this one an item of its own"),
        (6, "there", "retired"),
        (7, "added", ""),
        (8, "refused", "item lonely: a pair has two answers, a safety question one"),
        (9, "refused", "control question gold: safety is safe or unsafe, not 'no'"),
        (10, "refused", "colour: Extra inputs are not permitted"),
        (11, "refused", "it is no JSON"),
        (12, "refused", "it is no JSON"),
        (13, "refused", "it is no JSON object"),
    ]
    assert (found["added"], found["there"], found["refused"]) == (2, 2, 8)
    assert Controls(queue.store).all() == before, "nothing is added"
    good = [json.loads(lines[one["line"] - 1]) for one in found["rows"] if one["fate"] == "added"]
    assert admin.post(f"{API}/gold", json={"questions": good}).json() == {"added": 2}, "the import does what it said"


def test_a_preview_of_another_run_in_one_database_knows_its_own_stock(queue: FreshQueue) -> None:
    queue.rounds.add_gold([SAFETY], by="admin")
    other = Store(queue.engine, "another", lambda: queue.now_ms)
    assert Controls(other).fates([SAFETY]) == [(Fate.ADDED, "")]


def test_the_recipe_that_asks_people_asks_control_questions_and_some_pairs_twice() -> None:
    people = load("text-world-people").people
    assert people.gold_rate > 0
    assert people.overlap > 0
