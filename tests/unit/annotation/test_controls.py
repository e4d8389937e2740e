"""Control questions: nonsense is refused, statistics are theirs, and one can be taken out of use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddpo_ray.annotation.answers import Submission
from pddpo_ray.annotation.controls import Controls
from pddpo_ray.annotation.leases import Lease
from pddpo_ray.annotation.people import Role
from pddpo_ray.annotation.questions import Question
from pddpo_ray.annotation.queue_rules import QueueError
from pddpo_ray.journal.audit import imbalances
from tests.annotation_api import API, FreshService, is_problem
from tests.annotation_queue import FreshQueue

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
