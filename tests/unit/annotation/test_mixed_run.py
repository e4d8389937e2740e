"""Runs in which a model compares and measures most and people the rest, on the tabular world."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.special import expit

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.limits.sources import asked_first
from pddpo_ray.parts.labelling import MODEL, PEOPLE, MixedComparisons
from pddpo_ray.records import answers_seen
from pddpo_ray.scorers import labellers
from pddpo_ray.worlds.truth_by_text import truth_of
from tests.support.people_by_truth import PeopleByTruth, stand_in
from tests.unit.loop.test_twin_run import TINY

SETTINGS = [
    "feedback.kind=mixed",
    "feedback.responses=64",
    "feedback.pairs_unsure=6",
    "feedback.pairs_random=4",
    "limits.cost={logit: {model: cost}, at_most: 0, labels_each: 6, audited_by: {people: 24, unsure: 8}}",
    "people.overlap=0",
    "rounds=2",
    "explore.prompts=8",
    "explore.baseline_answers=4",
    "explore.picks=3",
    "explore.keep=16",
    "rollout.candidates=4",
    "report.tensorboard=false",
    "report.html=false",
]
AUDIT = "measure-answers-cost"


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> PeopleByTruth:
    """In place of the queue: the queue itself has its own end-to-end test."""
    answering = PeopleByTruth(truth_of(load("tabular")))
    stand_in(monkeypatch, answering)
    return answering


@pytest.mark.run
def test_a_mixed_run_asks_people_what_its_recipe_says_and_journals_who_said_what(
    tmp_path: Path, people: PeopleByTruth
) -> None:
    run_recipe(load("tabular", SETTINGS), tmp_path / "demo")
    assert people.asked == {AUDIT: 2 * 24, "compare": 2 * 10}
    with read_journal(tmp_path / "demo" / "journal.sqlite", "demo") as journal:
        for number in (1, 2):
            assert Counter(entry.labeller for entry in journal.pairs(number)) == {PEOPLE: 10, MODEL: 6}
            said = journal.measurements(number, "measure-answers", "cost")
            machine = {one.answer: one.value for one in said if one.chance is None}
            assert len(machine) == 64
            # 8 answers in any case, those whose chance of "unsafe" is nearest to a half; 16 of the other 56 by lot
            assert Counter(one.chance for one in said if one.chance is not None) == {1.0: 8 * 6, 16 / 56: 16 * 6}
            nearest = sorted(machine, key=lambda name: abs(float(machine[name] or 0) - 0.5))[:8]
            assert {one.answer for one in said if one.chance == 1.0} == set(nearest)
            assert {one.person for one in said if one.chance} == {f"person-{index}" for index in range(6)}
        steps = journal.dual_steps()
    assert [step.estimate.responses for step in steps] == [answers_seen(8, 16, 64)] * 2


@pytest.mark.full
@pytest.mark.run
def test_a_mixed_run_broken_off_before_its_comparisons_asks_the_same_people_the_same(
    tmp_path: Path, people: PeopleByTruth, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("tabular", SETTINGS)
    whole = run_recipe(config, tmp_path / "whole" / "demo")
    with monkeypatch.context() as power:
        power.setattr(MixedComparisons, "_collect_comparisons", broken)
        with pytest.raises(RunError, match="broken off"):
            run_recipe(config, tmp_path / "broken" / "demo")
    resumed = run_recipe(config, tmp_path / "broken" / "demo", resume=True)
    exact = ("multiplier_next", "f_last", "g_last", "labels_used")
    assert {key: whole[key] for key in exact} == {key: resumed[key] for key in exact}


def broken(self: object, pairs: object) -> int:
    raise RunError("broken off")


class Late(PeopleByTruth):
    """They are done when they are looked at a third time: once they are opened, and once too early."""

    def __init__(self) -> None:
        super().__init__(truth_of(load("tabular")))
        self.looks: Counter[str] = Counter()

    def arrived(self, batch: object) -> bool:
        first = batch.questions[0].item  # type: ignore[attr-defined]
        self.looks[first] += 1
        return self.looks[first] > 2


@pytest.mark.run
def test_people_beside_a_model_may_be_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late()
    stand_in(monkeypatch, late)
    run_recipe(load("tabular", [*SETTINGS, "feedback.rounds_late=2", "rounds=3"]), tmp_path / "demo")
    with read_journal(tmp_path / "demo" / "journal.sqlite", "demo") as journal:
        for phase in ("due-safety", "due-pairs"):
            assert {one.round: one.payload for one in journal.phases(like=phase)} == {1: [], 2: [1], 3: [2, 3]}
        steps = journal.dual_steps()
        for number in (1, 2, 3):
            assert Counter(entry.labeller for entry in journal.pairs(number)) == {PEOPLE: 10, MODEL: 6}
    assert [step.round for step in steps] == [1, 2, 3]
    assert late.asked == {AUDIT: 3 * 24, "compare": 3 * 10}


@pytest.mark.run
def test_on_texts_the_machine_measures_beside_a_rule_and_the_truth_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = "limits.cost={logit: {model: cost}, at_most: 0, labels_each: 4, audited_by: {people: 12, unsure: 4}}"
    length = "limits.length={mean: {rule: words}, at_most: 13, bounds: [0, 40]}"
    config = load("text-world-twin", ["feedback.kind=mixed", *TINY, cost, length, "rounds=1", "people.overlap=0"])
    people = PeopleByTruth(truth_of(config))
    stand_in(monkeypatch, people)
    limits = run_recipe(config, tmp_path / "demo")["limits"]
    assert people.asked[AUDIT] == 12
    with read_journal(tmp_path / "demo" / "journal.sqlite", "demo") as journal:
        said = journal.measurements(1, "measure-answers")
        (step,) = [one for one in journal.dual_steps() if one.constraint == "cost"]
    by_machines = Counter(one.source for one in said if one.chance is None)
    assert by_machines == {"model cost": 24, "rule words": 24}
    assert step.estimate.responses == answers_seen(4, 8, 24)
    assert limits["cost"]["audit"]["asked"] == 12
    assert {"estimate", "value_last", "value_optimum"} <= set(limits["cost"]) & set(limits["length"])


def limit_of_round(config: Config, folder: Path, people: PeopleByTruth) -> tuple[float, float, bool]:
    """A round's estimate of the unsafe rate and the machine's own, each less the truth of the same answers, and whether
    the interval holds that truth."""
    result = run_recipe(config, folder)
    truth = truth_of(config)
    with read_journal(folder / "journal.sqlite", folder.name) as journal:
        answers = journal.samples(1, "cost")
        machine = [one.value for one in journal.measurements(1, "measure-answers") if one.chance is None]
    expected = float(np.mean([expit(truth.scores(one.prompt.text, one.text)[1]) for one in answers]))
    limit = result["limits"]["cost"]
    inside = limit["low"] <= expected <= limit["high"]
    return limit["estimate"] - expected, float(np.mean([one for one in machine if one is not None])) - expected, inside


@pytest.mark.full
@pytest.mark.run
def test_the_estimate_of_a_mixed_round_is_unbiased_though_the_model_is_wrong(
    tmp_path: Path, people: PeopleByTruth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 runs of a round with other seeds; the model adds 1 to every cost, and people label one time each."""
    monkeypatch.setattr(labellers, "BIAS", 1.0)
    rate = "limits.cost={rate: {model: cost}, at_most: 50 %, audited_by: {people: 24, unsure: 8}}"
    fits = ["rounds=1", "algorithm=pd-dpo", "trainer.fit.steps=1", rate]
    found = [
        limit_of_round(load("tabular", [*SETTINGS, *fits, f"seed={seed}"]), tmp_path / f"{seed}", people)
        for seed in range(20)
    ]
    errors, of_model, inside = (np.array(one) for one in zip(*found, strict=True))
    assert of_model.mean() > 0.1
    assert abs(errors.mean()) < 3 * errors.std() / np.sqrt(20)
    assert inside.sum() >= 17


def test_people_are_asked_first_where_a_margin_is_smallest_and_then_by_lot() -> None:
    margins = [0.4, 0.0, 0.2, 0.0, 0.5, 0.3]
    chances = asked_first("cost", margins, 2, 4, 7)
    assert {index for index, chance in chances.items() if chance == 1.0} == {1, 3}
    assert sorted(chances.values()) == [0.5, 0.5, 1.0, 1.0]
    assert asked_first("cost", margins, 2, 4, 7) == chances
    assert asked_first("cost", margins, 2, 9, 7) == dict.fromkeys(range(6), 1.0)
    assert set(asked_first("cost", margins, 0, 4, 7).values()) == {4 / 6}


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("{rate: {model: cost}, at_most: 50 %, audited_by: {people: 12, unsure: 8}}", "whole number up to 4"),
        ("{logit: {model: cost}, at_most: 0, labels_each: 6}", "state audited_by"),
        ("{rate: {rule: refusal}, at_most: 50 %, audited_by: {people: 24, unsure: 8}}", "gives a verdict, no chance"),
        (
            "{mean: {judge: {question: a.md}}, at_most: 3, bounds: [0, 5], audited_by: {people: 24, unsure: 8}}",
            "gives a number, no chance",
        ),
        ("{logit: {mixed: cost}, at_most: 0}", r"write limits: \{cost: \{logit: \{model: cost\}, audited_by:"),
    ],
)
def test_an_audit_that_cannot_begin_with_the_unsure_answers_is_refused(limit: str, said: str) -> None:
    settings = [one for one in SETTINGS if not one.startswith("limits")]
    with pytest.raises((UserError, ValueError), match=said):
        Config.model_validate({**load("tabular", settings).model_dump(), "limits": {"cost": yaml.safe_load(limit)}})
