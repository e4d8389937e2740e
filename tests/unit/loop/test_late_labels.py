"""Rounds that go on without labels: what they take and when, after a kill too, and what the multiplier makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_lab.worlds.tabular.world import rare_world
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.config import load
from pddpo_ray.contracts import Labeller, LateLabeller
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import ParkedError, UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.dual_step import journalled_estimates
from pddpo_ray.parts.due_labels import PAIRS, SAFETY
from pddpo_ray.records import CostEstimate, LabelledPair, Pair, Response, SafetyLabels
from pddpo_ray.scorers import labellers
from pddpo_ray.theory.multipliers.dual import (
    DampedNewton,
    DualState,
    LogMultiplier,
    ProjectedAnytime,
    Rule,
    ascend,
    limit_state,
    stale_share,
)
from tests.support.answering_people import answering
from tests.unit.loop.small_run import MEASURED, SMALL, finish, ledger, small

NEWTON = "dual.rule={kind: newton}"


# --- the multiplier -------------------------------------------------------------------------------------------------


def exact_trace(
    rule: Rule, late: int, rounds: int, *, bursts: int = 0, carried: bool = True
) -> tuple[list[float], float]:
    """Multipliers of a world whose fits and costs are exact and whose estimates come `late` rounds late (or, with
    `bursts`, all at every so manieth round); and the optimum."""
    oracle = rare_world(3).oracle
    state = DualState((limit_state("cost", rho=oracle.rho, rule=rule, limit=oracle.threshold),))
    made: list[float] = []
    taken = 0
    for k in range(rounds):
        made.append(state.multiplier)
        while taken <= (k if bursts and (k + 1) % bursts == 0 else -1 if bursts else k - late):
            policy = oracle.tilted(oracle.reward, oracle.cost, made[taken])
            mean = np.sum(policy * oracle.cost, axis=1, keepdims=True)
            spread = float(np.mean(np.sum(policy * (oracle.cost - mean) ** 2, axis=1)))
            estimate = CostEstimate(
                oracle.g(policy) + oracle.threshold,
                0.01,
                256,
                32,
                within_variance=spread,
                rounds_late=k - taken,
                moved=state.multiplier - made[taken] if carried else 0.0,
            )
            state, _ = ascend(state, estimate)
            taken += 1
    return made, oracle.optimum.multiplier


def newton(rounds: int, damping: float = 1.0) -> DampedNewton:
    return DampedNewton(rounds=rounds, beta=rare_world(3).oracle.beta, cost_max=2.0, damping=damping)


@pytest.mark.slow
@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_newtons_step_converges_with_labels_ten_rounds_late_and_does_not_swing(damping: float) -> None:
    made, optimum = exact_trace(newton(80, damping), 10, 80)
    errors = np.array(made) - optimum
    assert abs(errors[0]) > 0.1
    assert np.abs(errors[-20:]).max() < 0.01
    # it never goes further beyond the optimum than a single step without delay does
    prompt, _ = exact_trace(newton(80, damping), 0, 80)
    assert np.abs(errors).max() <= np.abs(np.array(prompt) - optimum).max() + 1e-9


def test_without_the_carry_the_same_steps_swing_for_ever() -> None:
    made, _ = exact_trace(newton(80), 10, 80, carried=False)
    assert np.ptp(made[-40:]) > 0.1


def test_labels_of_many_rounds_that_come_at_once_count_once() -> None:
    made, optimum = exact_trace(newton(80), 0, 80, bursts=10)
    assert np.abs(np.array(made[-10:]) - optimum).max() < 0.01


def test_gradient_steps_come_to_rest_with_labels_ten_rounds_late() -> None:
    oracle = rare_world(3).oracle
    rule = ProjectedAnytime(first_step=oracle.rho / 2.0, cost_max=2.0, curvature_beta=oracle.beta)
    made, optimum = exact_trace(rule, 10, 400)
    assert abs(made[-1] - optimum) < 0.05
    assert np.ptp(made[-40:]) < 0.05


@pytest.mark.parametrize("late", [0, 10])
@pytest.mark.parametrize("gain", [0.5, 0.9])
def test_a_rule_that_comes_to_rest_on_prompt_labels_does_so_on_late_ones(gain: float, late: int) -> None:
    """Steps of 0.5 and 0.9 of the curvature's inverse; ten rounds late as they are they would swing for ever."""
    oracle = rare_world(3).oracle
    optimum = oracle.optimum
    curvature = oracle.cost_variance(optimum.policy) / oracle.beta
    made, _ = exact_trace(LogMultiplier(gain / (optimum.multiplier**2 * curvature)), late, 800)
    assert np.abs(np.array(made[-40:]) - optimum.multiplier).max() < 1e-6


@pytest.mark.parametrize("late", [1, 2, 10])
def test_the_stale_share_is_the_largest_step_without_a_swing(late: int) -> None:
    """Roots of z^(s+1) - z^s + a: real and positive up to the share (the dominant ones), a complex pair beyond it."""

    def dominant(a: float) -> complex:
        roots = np.roots([1.0, -1.0, *[0.0] * (late - 1), a])
        return complex(roots[np.abs(roots).argmax()])

    share = stale_share(late)
    assert abs(dominant(0.99 * share).imag) < 1e-6
    assert abs(dominant(1.05 * share).imag) > 1e-3
    assert stale_share(0) == 1.0


# --- rounds ---------------------------------------------------------------------------------------------------------


class Slow:
    """A LateLabeller over another: what a round asked is there so many looks later, or never by itself."""

    def __init__(self, inner: Labeller, looks: int | None, parks_at: set[str] | None = None) -> None:
        self._inner, self._looks, self._parks_at = inner, looks, parks_at if parks_at is not None else set()
        self._seen: dict[str, int] = {}

    def open_safety(self, items: Sequence[Response], labels_each: int, seed: int) -> None:
        """Nothing to prepare."""

    def open_compare(self, pairs: Sequence[Pair], seed: int) -> None:
        """Nothing to prepare."""

    def _arrived(self, first: str) -> bool:
        self._seen[first] = self._seen.get(first, -1) + 1
        return self._looks is not None and self._seen[first] >= self._looks

    def safety_arrived(self, items: Sequence[Response], labels_each: int, seed: int) -> bool:
        return self._arrived(items[0].id)

    def comparisons_arrived(self, pairs: Sequence[Pair], seed: int) -> bool:
        return self._arrived(pairs[0].id)

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        if items[0].id in self._parks_at:
            self._parks_at.discard(items[0].id)
            raise ParkedError(f"{items[0].id} waits for people")
        return self._inner.safety(items, labels_each, seed)

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        return self._inner.compare(pairs, seed)


def taken(run: Path, phase: str) -> dict[int, list[int]]:
    """{round: rounds whose labels it took}"""
    with open_folder(run) as journal:
        return {entry.round: entry.payload for entry in journal.phases(like=phase)}


@pytest.mark.slow
def test_a_worlds_labels_come_exactly_so_late_and_all_by_the_end(tmp_path: Path) -> None:
    told = finish(small("feedback.rounds_late=2", NEWTON, rounds=5), tmp_path / "run")
    assert taken(tmp_path / "run", SAFETY) == {1: [], 2: [], 3: [1], 4: [2], 5: [3, 4, 5]}
    assert taken(tmp_path / "run", PAIRS) == {1: [], 2: [], 3: [1], 4: [2], 5: [3, 4, 5]}
    with open_folder(tmp_path / "run") as journal:
        late = {number: one.get("dual/rounds_late") for number, one in journal.metrics().items() if number > 0}
        versions = {entry.round: entry.multiplier for entry in journal.versions() if entry.stage == "cost"}
    assert late == {1: 2, 2: 2, 3: 2, 4: 1, 5: None}
    steps = {step.round: step for step in told["dual"]}
    assert {number: steps[number].multiplier_before for number in steps} == pytest.approx(versions)
    assert steps[1].multiplier_before == steps[2].multiplier_before == steps[3].multiplier_before
    assert steps[4].multiplier_before == steps[1].multiplier_after


@pytest.mark.run
def test_labels_of_a_run_that_waits_are_the_same_when_nothing_is_late(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        slowed(patch, 0)
        prompt = finish(small("feedback.rounds_late=3", NEWTON, rounds=3), tmp_path / "prompt")
    usual = finish(small(NEWTON, rounds=3), tmp_path / "usual")
    assert {name: prompt[name] for name in ("safety", "pairs", "dual")} == {
        name: usual[name] for name in ("safety", "pairs", "dual")
    }


def slowed(patch: pytest.MonkeyPatch, looks: int | None, parks_at: set[str] | None = None) -> None:
    part = labellers.Labelling.part

    def slow(run: labellers.Labelling, labeller: Any) -> Any:
        return part(run, Slow(labeller, looks, parks_at))

    patch.setattr(labellers.Labelling, "part", slow)


@pytest.mark.slow
def test_the_run_takes_labels_when_they_are_there_and_parks_at_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(Slow(None, 0), LateLabeller)  # type: ignore[arg-type]
    slowed(monkeypatch, 1)
    finish(small("feedback.rounds_late=4", NEWTON, rounds=4), tmp_path / "soon")
    assert taken(tmp_path / "soon", SAFETY) == {1: [], 2: [1], 3: [2], 4: [3, 4]}
    monkeypatch.undo()
    slowed(monkeypatch, None, {"1-cost-0-0"})
    config = small("feedback.rounds_late=2", NEWTON, rounds=4)
    with pytest.raises(ParkedError, match="1-cost-0-0 waits"):
        run_recipe(config, tmp_path / "never")
    assert taken(tmp_path / "never", SAFETY) == {1: [], 2: [], 3: [1]}
    parked = finish(config, tmp_path / "never", resume=True)
    monkeypatch.undo()
    slowed(monkeypatch, None)
    assert parked == finish(config, tmp_path / "unbroken")


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


KILLS = [
    (3, "explore"), (3, PAIRS), (1, "compare"), (1, "preferences"), (3, SAFETY), (1, "safety"), (1, "dual"),
    (4, "fit-reward"), (4, SAFETY), (3, "safety"), (4, "dual"),
]  # fmt: skip
"""(round, phase) before which the run dies, one after another."""


def killing(point: tuple[int, str]) -> Any:
    def listen(event: Any) -> None:
        inner = getattr(event, "event", None)
        if inner is not None and inner.what == "phase-started" and (inner.round, inner.phase) == point:
            raise Killed

    return listen


@pytest.mark.full
@pytest.mark.slow
def test_a_run_killed_again_and_again_goes_on_to_the_same_trace(tmp_path: Path) -> None:
    config = small("feedback.rounds_late=2", NEWTON, "certificate.mixtures=[1]", rounds=4)
    whole = finish(config, tmp_path / "whole")
    for index, point in enumerate(KILLS):
        with pytest.raises(Killed):
            run_recipe(config, tmp_path / "broken", resume=index > 0, progress=killing(point))
    assert finish(config, tmp_path / "broken", resume=True) == whole
    assert ledger(tmp_path / "broken") == ledger(tmp_path / "whole")


@pytest.mark.run
def test_measured_limits_are_late_together_and_a_killed_run_goes_on_to_the_same_trace(tmp_path: Path) -> None:
    """Both limits step from the multipliers that their measured policy was made at; a late step waits for no fit."""
    late = ["rounds=4", "feedback.rounds_late=2", "certificate.mixtures=[1]"]
    config = load("tabular-limits", [*MEASURED, *late])
    whole = finish(config, tmp_path / "whole")
    assert taken(tmp_path / "whole", SAFETY) == {1: [], 2: [], 3: [1], 4: [2, 3, 4]}
    with open_folder(tmp_path / "whole") as journal:
        told = {number: one.get("leaks/dual/rounds_late") for number, one in journal.metrics().items() if number > 0}
        steps = journalled_estimates(journal)
    assert told == {1: 2, 2: 2, 3: 1, 4: None}
    assert [(one.round, one.limits[0].rounds_late, one.covariance is None) for one in steps] == [
        (1, 2, False), (2, 2, False), (3, 1, False), (4, 0, False),
    ]  # fmt: skip
    before = {(step.round, step.constraint): step.multiplier_before for step in whole["dual"]}
    assert all(before[1, name] == before[2, name] == before[3, name] != before[4, name] for name in ("harm", "leaks"))
    kills = [(3, SAFETY), (1, "measure-answers"), (1, "dual"), (4, "fit-reward"), (4, SAFETY), (3, "measure-answers")]
    for index, point in enumerate(kills):
        with pytest.raises(Killed):
            run_recipe(config, tmp_path / "broken", resume=index > 0, progress=killing(point))
    assert finish(config, tmp_path / "broken", resume=True) == whole
    assert ledger(tmp_path / "broken") == ledger(tmp_path / "whole")


@pytest.mark.full
@pytest.mark.slow
def test_what_rules_measure_is_never_late_and_people_are_waited_for_at_the_bound(tmp_path: Path) -> None:
    recipe = "text-world-limits-twin"
    overrides = [
        *MEASURED,
        "limits.harmful=null",
        "limits.rude=null",
        "rounds=3",
        "feedback.responses=12",
        "dual.rho=4",
    ]
    usual = finish(load(recipe, overrides), tmp_path / "usual")
    prompt = finish(load(recipe, [*overrides, "feedback.rounds_late=2"]), tmp_path / "prompt")
    assert taken(tmp_path / "prompt", SAFETY) == {1: [1], 2: [2], 3: [3]}
    assert [step.estimate for step in prompt["dual"][:1]] == [step.estimate for step in usual["dual"][:1]]

    folder = tmp_path / "people"
    rude = "limits.rude={rate: {people: {labels_each: 2}}, over: outside, at_most: 60 %}"
    late = [*overrides, rude, "feedback.rounds_late=1"]
    with pytest.raises(ParkedError, match="round 1, measure-answers-rude: waiting for people, 0 of"):
        run_recipe(load(recipe, [*late, "people={park_after_s: 0}"]), folder)
    assert taken(folder, SAFETY) == {1: [], 2: [1]}
    with open_folder(folder) as journal:
        batches = {(one.round, one.purpose) for one in Rounds(Store(journal.engine, journal.run_id), Rules()).all()}
    assert {(1, "measure-answers-rude"), (2, "measure-answers-rude")} <= batches
    with answering(folder, 3, lambda lease, number: number % 2 == 0):
        told = finish(load(recipe, [*late, "people={}"]), folder, resume=True)
    assert [step.round for step in told["dual"] if step.constraint == "rude"] == [1, 2, 3]


@pytest.mark.run
def test_certificates_have_the_draws_of_every_round_in_order(tmp_path: Path) -> None:
    config = small("feedback.rounds_late=2", NEWTON, "certificate.mixtures=[1]", rounds=4)
    finish(config, tmp_path / "run")
    (line,) = ledger(tmp_path / "run")
    each = config.feedback.responses
    assert [int(draw.split("-")[0]) for draw in line.draws["cost"]] == [n for n in (1, 2, 3, 4) for _ in range(each)]
    with open_folder(tmp_path / "run") as journal:
        assert list(line.draws["cost"]) == [one.id for one in journal.samples(purpose="cost")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["algorithm=pd-dpo-fixed", "dual.rule={kind: fixed}", "dual.first=1.0"], "waits for its labels"),
        (["feedback.rounds_late=-1"], "rounds_late"),
    ],
)
def test_what_cannot_be_late_is_refused(given: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load("tabular", [*SMALL, "feedback.rounds_late=2", *given])


PEOPLE = [
    "feedback.kind=people",
    "feedback.rounds_late=1",
    "limits.cost.labels_each=2",
    "feedback.responses=10",
]
RATE = ["limits.cost={rate: {people: {}}, learned_from: comparisons}", "limits.cost.at_most=0.5"]


@pytest.mark.full
@pytest.mark.slow
def test_a_run_with_people_goes_on_without_them_until_the_bound(tmp_path: Path) -> None:
    config = small(*PEOPLE, *RATE, NEWTON, "people.park_after_s=0", rounds=3)
    with pytest.raises(ParkedError, match="round 1, compare: waiting for people, 0 of"):
        run_recipe(config, tmp_path / "pairs")
    with open_folder(tmp_path / "pairs") as journal:
        batches = {(one.round, one.purpose) for one in Rounds(Store(journal.engine, journal.run_id), Rules()).all()}
    assert {(1, "safety"), (1, "compare"), (2, "safety"), (2, "compare")} <= batches

    alone = tmp_path / "alone"
    with pytest.raises(ParkedError, match="round 1, safety: waiting for people, 0 of"):
        run_recipe(small("algorithm=pd-dpo", *PEOPLE, *RATE, NEWTON, "people.park_after_s=0", rounds=3), alone)
    assert taken(alone, SAFETY) == {1: [], 2: [1]}
    with answering(alone, 3, lambda lease, number: number % 2 == 0):
        told = finish(small("algorithm=pd-dpo", *PEOPLE, *RATE, NEWTON, rounds=3), alone, resume=True)
    assert [step.round for step in told["dual"]] == [1, 2, 3]
    assert all(len(one.labels) == 2 for one in told["safety"])
