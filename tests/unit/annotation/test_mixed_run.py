"""Runs in which a model answers most and people the rest, on the tabular world."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from pddpo_lab.worlds.tabular.files import tabular_world
from pddpo_ray.config import Config, MixedFeedback, load
from pddpo_ray.contracts import Labeller
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import Journal, read_journal
from pddpo_ray.parts import mixed_labelling
from pddpo_ray.parts.mixed_labelling import MODEL, PEOPLE, MixedFeedbackController, mixed_feedback
from pddpo_ray.records import HARM, Response, answers_seen
from pddpo_ray.theory.estimates.cost_estimate import interval
from pddpo_ray.theory.estimates.people_estimates import Sample
from pddpo_ray.worlds.truth_by_text import imperfect_model, truth_of
from pddpo_ray.worlds.truth_labeller import WorldLabeller

SETTINGS = [
    "feedback.kind=mixed",
    "feedback.responses=64",
    "feedback.unsure=8",
    "feedback.random=16",
    "feedback.pairs_unsure=6",
    "feedback.pairs_random=4",
    "limits.cost.labels_each=6",
    "limits.cost={rate: {mixed: cost}, learned_from: comparisons}",
    "limits.cost.at_most=0.5",
    "rounds=2",
    "explore.prompts=8",
    "explore.baseline_answers=4",
    "explore.picks=3",
    "explore.keep=16",
    "rollout.candidates=4",
    "report.tensorboard=false",
    "report.html=false",
]


class Counting:
    """People that answer from the truth, and how much each was asked."""

    def __init__(self, truth: WorldLabeller) -> None:
        self._truth = truth
        self.safety_items: list[int] = []
        self.pair_items: list[int] = []

    def safety(self, items, labels_each, seed):  # type: ignore[no-untyped-def]
        self.safety_items.append(len(items))
        return self._truth.safety(items, labels_each, seed)

    def compare(self, pairs, seed):  # type: ignore[no-untyped-def]
        self.pair_items.append(len(pairs))
        return self._truth.compare(pairs, seed)


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """In place of the queue: the queue itself has its own end-to-end test."""
    counting = Counting(tabular_world(load("tabular").world).labeller())  # type: ignore[arg-type]
    monkeypatch.setattr("pddpo_ray.parts.mixed_labelling.people_labeller", lambda *_, **__: counting)
    return counting


@pytest.mark.run
def test_a_mixed_run_asks_people_what_its_recipe_says_and_journals_who_said_what(
    tmp_path: Path, people: Counting
) -> None:
    config = load("tabular", SETTINGS)
    result = run_recipe(config, tmp_path / "demo")
    assert (config.answers_asked, config.pairs_asked) == (24, 10)
    assert people.safety_items == [24, 24]
    assert people.pair_items == [10, 10]
    assert result["labels_safety"] == 2 * 24 * 6
    with read_journal(tmp_path / "demo" / "journal.sqlite", "demo") as journal:
        for number in (1, 2):
            assert Counter(entry.labeller for entry in journal.pairs(number)) == {PEOPLE: 10, MODEL: 6}
            assert {len(labels.labels) for labels in journal.safety(number)} == {6}
            assert journal.metrics()[number]["explore/pairs"] == 16
            assert journal.metrics()[number]["explore/found"] == 24
        steps = journal.dual_steps()
    assert [step.estimate.responses for step in steps] == [64, 64]
    settings = config.feedback
    assert isinstance(settings, MixedFeedback)
    assert {step.estimate.seen for step in steps} == {answers_seen(settings.unsure, settings.random, 64)}


@pytest.mark.full
@pytest.mark.run
def test_a_mixed_run_broken_off_after_the_screening_asks_the_same_people_the_same(
    tmp_path: Path, people: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("tabular", SETTINGS)
    whole = run_recipe(config, tmp_path / "whole" / "demo")
    collect = MixedFeedbackController._collect_comparisons
    monkeypatch.setattr(MixedFeedbackController, "_collect_comparisons", broken)
    with pytest.raises(RunError, match="broken off"):
        run_recipe(config, tmp_path / "broken" / "demo")
    monkeypatch.setattr(MixedFeedbackController, "_collect_comparisons", collect)
    resumed = run_recipe(config, tmp_path / "broken" / "demo", resume=True)
    exact = ("multiplier_next", "f_last", "g_last", "labels_used")
    assert {key: whole[key] for key in exact} == {key: resumed[key] for key in exact}


def broken(self: object, pairs: object) -> int:
    raise RunError("broken off")


class Late(Counting):
    """They are done when they are looked at a second time."""

    def __init__(self, truth: WorldLabeller) -> None:
        super().__init__(truth)
        self.opened: list[int] = []
        self.looked: set[str] = set()

    def open_safety(self, items, labels_each, seed):  # type: ignore[no-untyped-def]
        self.opened.append(len(items))

    def open_compare(self, pairs, seed):  # type: ignore[no-untyped-def]
        self.opened.append(len(pairs))

    def safety_arrived(self, items, labels_each, seed):  # type: ignore[no-untyped-def]
        return self._again(items[0].id)

    def comparisons_arrived(self, pairs, seed):  # type: ignore[no-untyped-def]
        return self._again(pairs[0].id)

    def _again(self, name: str) -> bool:
        there = name in self.looked
        self.looked.add(name)
        return there


@pytest.mark.run
def test_people_beside_a_model_may_be_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late(tabular_world(load("tabular").world).labeller())  # type: ignore[arg-type]
    monkeypatch.setattr("pddpo_ray.parts.mixed_labelling.people_labeller", lambda *_, **__: late)
    run_recipe(load("tabular", [*SETTINGS, "feedback.rounds_late=2", "rounds=3"]), tmp_path / "demo")
    with read_journal(tmp_path / "demo" / "journal.sqlite", "demo") as journal:
        for phase in ("due-safety", "due-pairs"):
            assert {one.round: one.payload for one in journal.phases(like=phase)} == {1: [], 2: [1], 3: [2, 3]}
        for number in (1, 2, 3):
            assert len(journal.safety(number)) == 24
            assert Counter(entry.labeller for entry in journal.pairs(number)) == {PEOPLE: 10, MODEL: 6}
    assert late.safety_items == [24, 24, 24]
    assert late.pair_items == [10, 10, 10]
    assert late.opened == [24, 10] * 3


def test_people_begin_with_the_answers_that_the_model_screened_for_them(tmp_path: Path, people: Counting) -> None:
    opened: list[list[Response]] = []
    people.open_safety = lambda items, labels_each, seed: opened.append(list(items))  # type: ignore[attr-defined]
    config = load("tabular", SETTINGS)
    world = tabular_world(config.world)  # type: ignore[arg-type]
    responses = [world.response(0, n % world.shape[1], f"r-{n}") for n in range(64)]
    with Journal.open(tmp_path / "journal.sqlite", "demo", create=config.model_dump(mode="json")) as journal:
        journal.add_samples("cost", responses)
        feedback = mixed_feedback("cost", config, journal)
        feedback.open_safety(responses, 6)
        verdicts = feedback.safety(responses, 6, HARM)
        assert feedback.estimate_cost(verdicts).responses == 64
    assert [[item.response for item in verdicts]] == opened
    assert len(opened[0]) == 24


def estimate_of_round(config: Config, folder: Path, people: Labeller, responses: list[Response]) -> tuple[float, bool]:
    """One round's mixed estimate of the unsafe rate, and whether its interval holds the true one."""
    folder.mkdir(parents=True)
    place = folder / "journal.sqlite"
    with Journal.open(place, "demo", create=config.model_dump(mode="json"), fixed=config.fixed_settings()) as journal:
        journal.add_samples("cost", responses)
        feedback = mixed_feedback("cost", config, journal)
        estimate = feedback.estimate_cost(feedback.safety(responses, config.labels_each, HARM))
    truth = truth_of(config)
    expected = np.mean([expit(truth.scores(item.prompt.text, item.text)[1]) for item in responses])
    ends = interval(estimate)
    assert ends is not None
    return estimate.value - float(expected), bool(ends[0] <= expected <= ends[1])


@pytest.mark.slow
def test_the_estimate_of_a_mixed_round_is_unbiased_though_the_model_is_wrong(
    tmp_path: Path, people: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 rounds of the same 64 answers with other seeds; the model adds 1 to every cost."""
    monkeypatch.setattr(mixed_labelling, "BIAS", 1.0)
    world = tabular_world(load("tabular").world)  # type: ignore[arg-type]
    responses = [world.response(n % world.shape[0], (7 * n) % world.shape[1], f"r-{n}") for n in range(64)]
    errors, covered, model_errors = [], 0, []
    for seed in range(30):
        config = load("tabular", [*SETTINGS, f"seed={seed}"])
        error, inside = estimate_of_round(config, tmp_path / str(seed), people, responses)
        errors.append(error)
        covered += inside
        model = imperfect_model(config, noise=0.7, bias=1.0)
        truth = truth_of(config)
        expected = [expit(truth.scores(item.prompt.text, item.text)[1]) for item in responses]
        model_errors.append(float(np.mean(expit(model.costs(responses)) - expected)))
    assert np.mean(model_errors) > 0.1
    assert abs(np.mean(errors)) < 3 * np.std(errors) / np.sqrt(30)
    assert covered >= 26


def test_labels_of_answers_that_were_not_asked_are_refused(tmp_path: Path, people: Counting) -> None:
    config = load("tabular", SETTINGS)
    world = tabular_world(config.world)  # type: ignore[arg-type]
    responses = [world.response(0, n % world.shape[1], f"r-{n}") for n in range(64)]
    settings = MixedFeedback(unsure=8, random=16, pairs_unsure=6, pairs_random=4)
    place = tmp_path / "journal.sqlite"
    with Journal.open(place, "demo", create=config.model_dump(mode="json")) as journal:
        journal.add_samples("cost", responses)
        model = imperfect_model(config, noise=0.5, bias=0.0)
        feedback = MixedFeedbackController(
            "cost", people, model, settings, journal, cost_max=2.0, labels_each=6, signal="unsafe_rate", seed=1
        )
        with pytest.raises(RunError, match="before any labels"):
            feedback.estimate_cost([])
        verdicts = feedback.safety(responses, 6, HARM)
        with pytest.raises(RunError, match="24 were asked"):
            feedback.estimate_cost(verdicts[:-1])
        (screened,) = feedback._screened.values()
        assert isinstance(screened[2], Sample)


def test_a_recipe_cannot_ask_people_about_more_answers_than_there_are() -> None:
    with pytest.raises(UserError, match="more answers than"):
        load("tabular", ["feedback.kind=mixed", "feedback.responses=32", "feedback.unsure=24", "feedback.random=24"])
