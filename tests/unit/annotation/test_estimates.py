"""Estimates with missing labels and with a model's help, against exact enumeration and simulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from pddpo_ray.limits.sources import asked_first
from pddpo_ray.records import CostEstimate, answers_seen
from pddpo_ray.theory.estimates.cost_estimate import (
    Factors,
    MeasuredAnswer,
    answers_behind,
    clipped_logit,
    estimate_from_shares,
    estimates_on_sets,
    expected_clipped_logit,
    means_by_people_alone,
)
from pddpo_ray.theory.estimates.estimate_interval import interval
from pddpo_ray.theory.estimates.people_estimates import three_fillings


def rate(shares: NDArray[np.float64]) -> CostEstimate:
    return estimate_from_shares(shares, labels_each=4, cost_max=2.0, mode="unsafe_rate")


def test_three_fillings_by_hand() -> None:
    """Unsafe 1/2, 0/4, 3/3 of M = 4: observed (1/2 + 0 + 1)/3; safe (1/4 + 0 + 3/4)/3; unsafe (3/4 + 0 + 1)/3."""
    fillings = three_fillings([1, 0, 3], [2, 4, 3], 4, rate)
    assert fillings.observed is not None
    assert fillings.observed.value == pytest.approx(0.5)
    assert fillings.all_safe.value == pytest.approx(1 / 3)
    assert fillings.all_unsafe.value == pytest.approx(1.75 / 3)
    assert fillings.missing == 3


def test_fillings_agree_when_nothing_is_missing_and_say_when_nothing_is_there() -> None:
    fillings = three_fillings([1, 2], [4, 4], 4, rate)
    assert fillings.observed == fillings.all_safe == fillings.all_unsafe
    assert three_fillings([0, 0], [0, 0], 4, rate).observed is None
    with pytest.raises(ValueError, match="labelled"):
        three_fillings([3], [2], 4, rate)


def audited(
    machine: NDArray[np.float64],
    people: NDArray[np.float64],
    chances: Mapping[int, float],
    mode: str = "unsafe_rate",
    labels_each: int = 1,
    bound: float | None = None,
) -> CostEstimate:
    """A limit's estimate from a machine on all answers and people on those with a chance, as a run has it."""
    chance = np.array([chances.get(row, 0.0) for row in range(len(machine))])
    said = np.where(chance > 0, people, 0.0)
    measured = [
        MeasuredAnswer(
            1,
            (0,),
            (0,),
            str(row),
            machine[[row]],
            np.zeros(1),
            np.zeros(1, dtype=bool),
            people=said[[row]],
            chance=chance[[row]],
        )
        for row in range(len(machine))
    ]
    factors: Factors = {(0,): np.ones(1)}
    found = estimates_on_sets(measured, factors, np.ones(1))
    value, error, count = float(found.means[0]), float(found.standard_errors[0]), answers_behind(measured, 0, factors)
    unconfirmed = max(0.0, value - float(means_by_people_alone(measured)[0])) if mode == "unsafe_rate" else 0.0
    return CostEstimate(value, error, count, labels_each, mode, cost_max=bound, missing=unconfirmed)


def test_when_all_are_asked_the_estimate_is_that_of_people() -> None:
    rng = np.random.default_rng(11)
    shares = rng.integers(0, 9, 40) / 8
    chances = asked_first("cost", [0.0] * 40, 10, 40, 1)
    for mode in ("unsafe_rate", "logit_labels"):
        signal = shares if mode == "unsafe_rate" else clipped_logit(shares, 2.0)
        found = audited(rng.normal(size=40), signal, chances, mode, 8, 2.0)
        plain = estimate_from_shares(shares, labels_each=8, cost_max=2.0, mode=mode)  # type: ignore[arg-type]
        assert found.responses == 40
        assert found.value == pytest.approx(plain.value)
        assert found.standard_error == pytest.approx(plain.standard_error)


def test_an_estimate_with_answers_asked_first_is_unbiased_whatever_the_machine_says() -> None:
    """Every way to draw 2 of the 4 answers that are not certain, each as likely as the others."""
    rng = np.random.default_rng(3)
    signal, machine = clipped_logit(rng.integers(0, 9, 6) / 8, 2.0), rng.normal(size=6) * 5
    values = [
        audited(machine, signal, {0: 1.0, 4: 1.0, first: 0.5, second: 0.5}, "logit_labels", 8, 2.0).value
        for first, second in itertools.combinations([1, 2, 3, 5], 2)
    ]
    assert np.mean(values) == pytest.approx(signal.mean())


@pytest.mark.parametrize("drawn", [3, 5])
def test_the_square_of_its_standard_error_is_right_on_average_by_exact_enumeration(drawn: int) -> None:
    """All draws of some of 10 answers beside 3 that are certain: S_y^2 / 13 for people, and what the drawing adds,
    (10/13)^2 (1 - drawn/10) S_{y-f}^2 / drawn, which is also the mean square of the error about people's mean."""
    rng = np.random.default_rng(5)
    people, machine = rng.random(13), rng.random(13)
    stated, errors = [], []
    for shown in itertools.combinations(range(3, 13), drawn):
        found = audited(machine, people, {0: 1.0, 1: 1.0, 2: 1.0} | dict.fromkeys(shown, drawn / 10))
        stated.append(found.standard_error**2)
        errors.append((found.value - people.mean()) ** 2)
    drawing = (10 / 13) ** 2 * (1 - drawn / 10) * np.var((people - machine)[3:], ddof=1) / drawn
    assert np.mean(errors) == pytest.approx(drawing)
    assert np.mean(stated) == pytest.approx(np.var(people, ddof=1) / 13 + drawing, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["unsafe_rate", "logit_labels"])
def test_its_interval_covers_and_a_good_machine_narrows_it(mode: str) -> None:
    """400 rounds of 160 answers, 16 unsure and 24 random ones labelled by 32 people; the model is biased.

    It is compared with people alone who label 40 answers drawn evenly.
    """
    covered, errors, own_width, people_width = 0, [], 0.0, 0.0
    for seed in range(400):
        rng = np.random.default_rng([seed, 5])
        costs = rng.normal(-0.2, 1.0, 160)
        scores = costs + 0.4 + 0.5 * rng.normal(size=160)
        shares = rng.binomial(32, expit(costs)) / 32
        chances = asked_first("cost", np.abs(expit(scores) - 0.5).tolist(), 16, 40, seed)
        machine = expit(scores) if mode == "unsafe_rate" else np.clip(scores, -2, 2)
        signal = shares if mode == "unsafe_rate" else clipped_logit(shares, 2.0)
        found = audited(machine, signal, chances, mode, 32, 2.0)
        expected = MEANS[mode]
        ends = interval(found)
        covered += ends is not None and ends[0] <= expected <= ends[1]
        errors.append(found.value - expected)
        own_width += found.standard_error
        people_width += float(np.std(signal, ddof=1)) / math.sqrt(40)
    assert covered >= 0.925 * 400
    assert abs(np.mean(errors)) < 3 * np.std(errors) / math.sqrt(400)
    assert own_width < 0.85 * people_width


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("unsure", [6, 24])
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.1, 0.3])
def test_its_interval_covers_what_a_machine_never_sees(rate: float, unsure: int) -> None:
    """1,000 rounds of 192 answers: people see the unsure ones and 24 others; the model calls every answer safe."""
    covered = 0
    for seed in range(1000):
        rng = np.random.default_rng([seed, 9])
        unsafe = (rng.random(192) < rate).astype(float)
        machine = expit(-np.abs(rng.normal(2.5, 0.7, 192)))
        chances = asked_first("cost", np.abs(machine - 0.5).tolist(), unsure, unsure + 24, seed)
        ends = interval(audited(machine, unsafe, chances))
        covered += ends is not None and ends[0] <= rate <= ends[1]
    assert covered >= 930


def test_an_interval_counts_what_people_saw_of_what_a_machine_stands_for() -> None:
    chances = asked_first("cost", [0.0] * 96, 12, 24, 1)
    assert audited(np.zeros(96), np.zeros(96), chances).responses == answers_seen(12, 12, 96) == 13
    assert answers_seen(12, 84, 96) == answers_seen(96, 0, 96) == 96


def mean_signal(mode: str) -> float:
    """What people say on average about answers with costs from N(-0.2, 1), by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    costs = nodes - 0.2
    values = expit(costs) if mode == "unsafe_rate" else expected_clipped_logit(costs, 32, 2.0)
    return float(weights @ values / weights.sum())


MEANS = {mode: mean_signal(mode) for mode in ("unsafe_rate", "logit_labels")}


def test_an_estimate_outside_0_and_1_has_an_interval_of_rates_too() -> None:
    assert interval(CostEstimate(-0.01, 0.02, 50, 4, "unsafe_rate")) == pytest.approx((0.0, 0.975))
