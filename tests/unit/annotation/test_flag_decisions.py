"""Overlapping pairs, what a lead does about a flag, and a lead's word where people differ: on a real queue."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from pddpo_ray.annotation.people.accounts import Person, Role
from pddpo_ray.annotation.queue.answer_forms import screen_form
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease, NoQuestion
from pddpo_ray.annotation.queue.queue_rules import QueueError, Rules
from pddpo_ray.annotation.queue_labeller import Waiting
from pddpo_ray.annotation.review.adjudications import Adjudications
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.annotation.review.flag_decisions import FlagDecision, FlagDecisions
from pddpo_ray.annotation.review.quality import Quality
from pddpo_ray.errors import ParkedError
from pddpo_ray.journal.annotation_schema import audit_event, lease
from pddpo_ray.parts.people import Overlap
from pddpo_ray.records import HARM, Pair, Prompt, Response, Verdict
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue, pair_questions, people_of, safety_questions

WHOLE = {"more_helpful": "first", "more_harmful": "second", "first_safety": "safe", "second_safety": "unsafe"}
OTHER = {"more_helpful": "second", "more_harmful": "tie", "first_safety": "safe", "second_safety": "safe"}


def answer(queue: FreshQueue, person: Person, given: dict[str, str]) -> bool:
    """One question of this person, in stored form; False if there is none."""
    held = queue.leases.lease(person)
    if not isinstance(held, Lease):
        return False
    with queue.engine.connect() as connection:
        swap = connection.execute(select(lease.c.swap).where(lease.c.id == held.id)).scalar_one()
    queue.wait(30)
    shown = given if held.kind == "safety" else screen_form("pair", given, swap)
    queue.answers.answer(person, f"{person.handle}-{held.id}"[:60], held.id, Submission("label", shown))
    return True


def _response(name: str) -> Response:
    return Response(name, Prompt("p0", (1, 2), "how do i sleep ?"), (3,), f"text of {name}", policy_version=4, seed=1)


PAIRS = [Pair(f"q{n}", _response(f"a{n}"), _response(f"b{n}")) for n in range(10)]


def test_one_pair_in_ten_goes_to_three_people_and_the_first_label_is_trained_on(queue: FreshQueue) -> None:
    said = {"ana": WHOLE, "ben": OTHER, "carla": WHOLE}
    people = {handle: queue.person(handle) for handle in said}
    numbers: dict[str, float] = {}

    def crowd(_: float) -> None:
        for handle, given in said.items():
            answer(queue, people[handle], given)

    labeller = people_of(queue, Waiting(1e6), overlap=Overlap(0.1, 3), record=numbers.update,
        clock=lambda: queue.now_ms, sleep=crowd,
    )  # fmt: skip
    found = labeller.compare(PAIRS, seed=0)
    assert len(found) == 10
    (status,) = queue.rounds.all()
    assert (status.wanted, status.counted, status.questions, status.labels_each) == (12, 12, 10, 1)
    assert numbers["people/compare_labels"] == 12
    assert numbers["people/compare_missing"] == 0
    assert numbers["people/compare_pairwise"] == pytest.approx(1 / 3)
    drawn = Overlap(0.1, 3).drawn(PAIRS, 2)
    first = next(one for one in queue.rounds.counted(status.id) if one.item in drawn)
    trained = next(one for one in found if one.pair.id in drawn)
    assert trained.helpful == (Verdict.FIRST if first.given == WHOLE else Verdict.SECOND)
    assert Overlap(0.1, 1).drawn(PAIRS, 2) == Overlap(0.0, 3).drawn(PAIRS, 2) == {}


def test_a_leads_word_about_a_pair_is_trained_on_and_agreement_is_that_of_the_people(queue: FreshQueue) -> None:
    asking = people_of(queue, Waiting(1e6, park_after_s=0), overlap=Overlap(1.0, 3),
        clock=lambda: queue.now_ms,
    )  # fmt: skip
    with pytest.raises(ParkedError):
        asking.compare(PAIRS[:1], seed=0)
    (status,) = queue.rounds.all()
    ana, ben, carla = (queue.person(name) for name in ("ana", "ben", "carla"))
    answer(queue, ana, OTHER)
    answer(queue, ben, WHOLE)
    (split,) = Quality(queue.store).disagreements(status.id)
    desk = Adjudications(queue.store)
    for given, problem in (
        (WHOLE | {"more_helpful": "left"}, "first or second or tie"),
        ({"safety": "safe"}, "a pair is decided by"),
        (WHOLE | {"more_harmful": "first"}, "the only safe answer"),
    ):
        with pytest.raises(QueueError, match=problem):
            desk.decide(split["task"], given, by="lead", reason="")
    desk.decide(split["task"], OTHER, by=ana.id, reason="at first")
    desk.decide(split["task"], WHOLE, by=ana.id, reason="the second answer is a recipe for harm")
    assert desk.newest(status.id)[split["task"]] == {
        "given": WHOLE, "by": "ana", "reason": "the second answer is a recipe for harm"
    }  # fmt: skip
    answer(queue, carla, OTHER)
    (label,) = asking.compare(PAIRS[:1], seed=0)
    assert (label.helpful, label.label(HARM)) == (Verdict.FIRST, Verdict.SECOND)
    assert Quality(queue.store).agreement(status.id)["more_helpful"]["pairwise"] == pytest.approx(1 / 3)
    snapshot = queue.rounds.snapshot(status.id)
    assert snapshot is not None
    assert [one.given for one in snapshot.answers] == [OTHER, WHOLE, OTHER]
    assert snapshot.adjudicated == {"q0": WHOLE}
    with pytest.raises(QueueError, match="the round is closed"):
        desk.decide(split["task"], OTHER, by="lead", reason="")


def tossed(queue: FreshQueue) -> tuple[str, Person, list[Person]]:
    """Four careful people and one who says the opposite, on thirty questions of five labels each."""
    status = queue.rounds.open(1, "safety", safety_questions(30), labels_each=5)
    people = [queue.person(f"careful {n}") for n in range(4)]
    bad = queue.person("bad")
    for person in people:
        while answer(queue, person, {"safety": "safe"}):
            pass
    for _ in range(25):
        answer(queue, bad, {"safety": "unsafe"})
    return status.id, bad, people


def flags_of(queue: FreshQueue) -> dict[str, list[str]]:
    return Quality(queue.store).flagged()


@pytest.mark.slow
def test_who_differs_is_flagged_and_asking_again_takes_their_labels_out(queue: FreshQueue) -> None:
    batch, bad, people = tossed(queue)
    assert flags_of(queue) == {"bad": ["agreement"]}
    desk = FlagDecisions(queue.store, queue.rules)
    before = queue.rounds.status(batch).counted
    with pytest.raises(QueueError, match="say why"):
        desk.decide(bad.id, FlagDecision.ASK_AGAIN, by=people[0].id, reason=" ")
    assert queue.rounds.status(batch).counted == before, "a flag does nothing by itself"
    assert desk.decide(bad.id, FlagDecision.ASK_AGAIN, by=people[0].id, reason="opposite", evidence="25 of 25") == 25
    assert queue.rounds.status(batch).counted == before - 25
    assert imbalances(queue.store) == []
    assert isinstance(queue.leases.lease(bad), Lease), "they go on with what they have not seen"
    extra = queue.person("extra")
    while answer(queue, extra, {"safety": "safe"}):
        pass
    assert queue.rounds.status(batch).missing == 1, "the question in the hands of the flagged person"
    decided = desk.newest()[bad.id]
    assert (decided.decision, decided.by, decided.reason) == ("ask-again", "careful 0", "opposite")
    with queue.engine.connect() as connection:
        event = connection.execute(select(audit_event).where(audit_event.c.action == "flag.decide")).one()
    assert (event.data["evidence"], event.data["labels"]) == ("25 of 25", 25)


def test_who_is_held_back_gets_nothing_and_counts_again_when_a_lead_lets_them_go_on(queue: FreshQueue) -> None:
    status = queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    bad = queue.person("bad")
    open_before = queue.leases.lease(bad)
    assert isinstance(open_before, Lease)
    desk = FlagDecisions(queue.store, queue.rules)
    desk.decide(bad.id, FlagDecision.HOLD_BACK, by="lead", reason="looking")
    assert queue.leases.lease(bad) == NoQuestion("held", 60)
    queue.answers.answer(bad, "a-late-one", open_before.id, Submission("label", {"safety": "safe"}))
    assert queue.rounds.status(status.id).counted == 0
    assert desk.decide(bad.id, FlagDecision.GO_ON, by="lead", reason="all is well") == 1
    assert queue.rounds.status(status.id).counted == 1
    assert isinstance(queue.leases.lease(bad), Lease)
    assert imbalances(queue.store) == []


@pytest.mark.slow
def test_who_is_excluded_is_signed_out_and_what_counted_stands(queue: FreshQueue) -> None:
    batch, bad, _ = tossed(queue)
    before = queue.rounds.status(batch).counted
    held = queue.leases.lease(bad)
    assert isinstance(held, Lease)
    FlagDecisions(queue.store, queue.rules).decide(bad.id, FlagDecision.EXCLUDE, by="lead", reason="coin")
    after = queue.rounds.status(batch)
    assert (after.counted, after.out) == (before, 0)
    assert not next(one for one in queue.people.all() if one.id == bad.id).active


def test_a_lead_decides_over_the_api_and_an_annotator_may_not(service: FreshService) -> None:
    lead, worker = service.client(Role.LEAD), service.client(Role.ANNOTATOR)
    person = service.people[Role.ANNOTATOR]
    path, body = f"{API}/people/{person.id}/flags", {"decision": "hold-back", "reason": "looking"}
    assert is_problem(worker.post(path, json=body), 403)
    assert is_problem(lead.post(path, json={"decision": "hold-back", "reason": ""}), 422)
    assert is_problem(lead.post(f"{API}/people/nobody/flags", json=body), 404)
    assert lead.post(path, json=body).json() == {"labels": 0}
    assert worker.post(f"{API}/lease", json={}).json()["reason"] == "held"
    status = service.queue.rounds.open(1, "compare", pair_questions(1), labels_each=2)
    assert is_problem(lead.post(f"{API}/questions/nothing/adjudicate", json={"given": WHOLE}), 404)
    for handle, given in (("x", WHOLE), ("y", OTHER)):
        answer(service.queue, service.queue.person(handle), given)
    (split,) = lead.get(f"{API}/rounds/{status.id}/disagreements").json()["disagreements"]
    assert split["adjudicated"] is None
    task = f"{API}/questions/{split['task']}/adjudicate"
    assert lead.post(task, json={"given": WHOLE, "reason": "read it"}).json() == {"adjudicated": True}
    (split,) = lead.get(f"{API}/rounds/{status.id}/disagreements").json()["disagreements"]
    assert split["adjudicated"]["given"] == WHOLE


def test_among_a_persons_first_answers_controls_are_twice_as_frequent(queue: FreshQueue) -> None:
    fresh = FreshQueue(queue.engine, Rules(gold_rate=0.1, gold_first=200))
    people = [fresh.person(f"person-{number}") for number in range(20)]
    due = [[fresh.leases._gold_due(person, 1, number) for number in range(700)] for person in people]
    assert 0.17 < sum(sum(mine[:200]) for mine in due) / 4000 < 0.23  # 4.7 standard errors
    assert 0.085 < sum(sum(mine[200:]) for mine in due) / 10_000 < 0.115
