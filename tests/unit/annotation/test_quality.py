"""What the lead sees, computed from real rows of a small crowd."""

from __future__ import annotations

import math

import pytest
from scipy.stats import beta
from sqlalchemy import insert

from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.exchange import GivenElsewhere, all_questions, take_answers
from pddpo_ray.annotation.review.quality import Quality
from pddpo_ray.journal.reading import JournalReader
from pddpo_ray.journal.schema import dual_step
from pddpo_ray.parts.questions import Question
from pddpo_ray.theory.estimates.estimate_interval import interval
from tests.support.annotation_queue import FreshQueue, safety_questions


def label_all(queue: FreshQueue, votes: dict[str, str], *, takes_s: float = 0.0) -> None:
    """Everybody answers everything they get: `votes` has one character per question and person, s or u."""
    for handle, answers in votes.items():
        person = queue.person(handle)
        while isinstance(lease := queue.leases.lease(person), Lease):
            number = int(lease.prompt.split()[1])
            given = {"safety": "safe" if answers[number] == "s" else "unsafe"}
            queue.wait(takes_s)
            submission = Submission("label", given, ms_spent=int(1000 * takes_s))
            queue.answers.answer(person, f"{handle}-{number}", lease.id, submission)


def test_agreement_pace_and_disagreements_of_a_round(queue: FreshQueue) -> None:
    """Columns ssu, uuu, sss: 2 + 6 + 6 of 18 ordered pairs agree is 14/18; the first question is the split one."""
    round_ = queue.rounds.open(1, "safety", safety_questions(3), labels_each=3)
    queue.wait(1800)
    label_all(queue, {"a": "sus", "b": "sus", "c": "uus"})
    quality = Quality(queue.store)
    found = quality.agreement(round_.id)["safety"]
    assert found["pairwise"] == pytest.approx(14 / 18)
    assert found["questions"] == 3
    assert found["alpha_low"] <= found["alpha"] <= found["alpha_high"]
    (worst,) = quality.disagreements(round_.id)
    assert (worst["prompt"], worst["split"]) == ("prompt 0", pytest.approx(1 / 3))
    assert {vote["handle"]: vote["given"]["safety"] for vote in worst["votes"]} == {
        "a": "safe",
        "b": "safe",
        "c": "unsafe",
    }
    assert quality.pace(queue.rounds.status(round_.id)) == {"labels_per_hour": 18.0, "seconds_left": 0.0}
    assert quality.agreement("nothing") == {}


def test_copies_of_labels_that_come_back_from_a_file_are_no_agreement(queue: FreshQueue) -> None:
    """The questions have all their labels, so copies are surplus; agreement is that of the 2 x 3 labels."""
    round_ = queue.rounds.open(1, "safety", safety_questions(3), labels_each=2)
    label_all(queue, {"a": "sus", "b": "suu"})
    quality = Quality(queue.store)
    before, split = quality.agreement(round_.id), quality.disagreements(round_.id)
    copies = [
        GivenElsewhere(one.id, f"copy {n}", {"safety": "safe"}) for n in range(4) for one in all_questions(queue.store)
    ]
    assert dict(take_answers(queue.store, queue.rules, "file", copies).outcomes) == {"surplus": 12}
    assert quality.agreement(round_.id) == before
    assert quality.disagreements(round_.id) == split
    rows = {row["handle"]: row for row in quality.people()}
    assert rows["a"]["standing"]["agreement"] == pytest.approx(2 / 3)
    assert rows["file copy 0"]["standing"]["answers"] == 0


def test_each_persons_gold_speed_and_refusals(queue: FreshQueue) -> None:
    golds = [Question("safety", f"g{n}", f"gold {n}", "x", gold={"safety": "unsafe"}) for n in range(2)]
    queue.rounds.open(1, "safety", safety_questions(2), labels_each=2)
    queue.rounds.add_gold(golds, by="admin")
    label_all(queue, {"quick": "ss"}, takes_s=0.5)
    person = queue.person("careful")
    lease = queue.leases.lease(person)
    assert isinstance(lease, Lease)
    queue.answers.answer(person, "k", lease.id, Submission("skip", reason="language"))
    rows = {row["handle"]: row for row in Quality(queue.store).people()}
    assert (rows["quick"]["answers"], rows["quick"]["median_s"], rows["quick"]["hasty"]) == (2, 0.5, 1.0)
    assert (rows["careful"]["answers"], rows["careful"]["refusals"], rows["careful"]["median_s"]) == (0, 1, None)
    assert rows["quick"]["gold_total"] == 0


def test_the_export_holds_every_action_once_and_pages(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(5), labels_each=1)
    label_all(queue, {"a": "sssss"})
    quality, rows, after = Quality(queue.store), [], 0
    while page := quality.export(round_.id, after, 2):
        rows += page
        after = page[-1]["seq"]
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]
    assert {row["item"] for row in rows} == {f"r{n}" for n in range(5)}
    assert rows[0]["provenance"] == {"policy_version": 2}


def test_refused_questions_have_the_reasons_of_flags_and_do_not_tell_who_skipped(queue: FreshQueue) -> None:
    round_ = queue.rounds.open(1, "safety", safety_questions(3), labels_each=3)
    says = {
        "ana": {0: Submission("flag", reason="broken", note="half of it is missing"), 1: Submission("skip")},
        "ben": {0: Submission("abstain"), 2: Submission("label", {"safety": "safe"})},
        "eve": {0: Submission("skip"), 2: Submission("skip")},
    }
    for handle, given in says.items():
        person = queue.person(handle)
        for _ in range(3):
            lease = queue.leases.lease(person)
            assert isinstance(lease, Lease)
            number = int(lease.prompt.split()[1])
            said = given.get(number, Submission("label", {"safety": "safe"}))
            queue.answers.answer(person, f"{handle}-{number}", lease.id, said)
            if (handle, number) == ("eve", 2):  # taken back: no refusal any more
                queue.answers.undo(person, lease.id)
                queue.answers.answer(person, "eve-again", lease.id, Submission("label", {"safety": "unsafe"}))
    quality = Quality(queue.store)
    first, second = quality.refused(round_.id)
    flag = {"handle": "ana", "reason": "broken", "note": "half of it is missing"}
    assert (first["prompt"], first["skipped"], first["cannot_tell"], first["flags"]) == ("prompt 0", 1, 1, [flag])
    assert (second["prompt"], second["skipped"], second["cannot_tell"], second["flags"]) == ("prompt 1", 1, 0, [])
    assert "eve" not in str(first)
    assert quality.refused(round_.id, 1, 1) == [second]
    assert quality.refused("nothing") == []


def test_the_leads_interval_of_a_round_is_the_runs_own(queue: FreshQueue) -> None:
    """Two unsafe answers of twenty: the exact binomial interval, by quantiles of the beta distribution."""
    step = {"run": "demo", "round": 1, "constraint": "cost", "value": 0.1, "standard_error": math.sqrt(0.1 * 0.9 / 20)}
    step |= {"responses": 20, "labels_each": 1, "mode": "unsafe_rate", "eta": 0.3}
    step |= {"multiplier_before": 1.0, "multiplier_after": 0.9}
    with queue.engine.begin() as connection:
        connection.execute(insert(dual_step).values(**step))
    (shown,) = Quality(queue.store).effects()
    assert (shown["low"], shown["high"]) == pytest.approx((beta.ppf(0.025, 2, 19), beta.ppf(0.975, 3, 18)))
    (of_the_run,) = JournalReader(queue.engine, "demo").dual_steps()
    assert (shown["low"], shown["high"]) == interval(of_the_run.estimate)
