"""Estimates with missing labels and with a model's help, against exact enumeration and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from pddpo_ray.records import CostEstimate, answers_seen
from pddpo_ray.theory.estimates.cost_estimate import (
    clipped_logit,
    estimate_from_shares,
    expected_clipped_logit,
    interval,
)
from pddpo_ray.theory.estimates.people_estimates import (
    Sample,
    mixed_estimate,
    mixed_from_shares,
    sample_for_people,
    three_fillings,
)


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


def test_people_get_what_the_model_doubts_most_and_as_many_others_as_were_asked_for() -> None:
    sample = sample_for_people([0.1, 0.9, 0.5, 0.9, 0.0, 0.3], unsure=2, random=2, seed=[7])
    assert sample.chances.tolist() == [0.5, 1.0, 0.5, 1.0, 0.5, 0.5]
    assert sample.asked.sum() == 4
    assert sample.asked[[1, 3]].all()
    again = sample_for_people([0.1, 0.9, 0.5, 0.9, 0.0, 0.3], unsure=2, random=2, seed=[7])
    assert again.asked.tolist() == sample.asked.tolist()


def test_when_all_are_asked_the_mixed_estimate_is_the_plain_one() -> None:
    rng = np.random.default_rng(11)
    shares = rng.integers(0, 9, 40) / 8
    sample = sample_for_people(np.zeros(40), unsure=10, random=30, seed=[1])
    for mode in ("unsafe_rate", "logit_labels"):
        mixed = mixed_from_shares(rng.normal(size=40), shares, sample, labels_each=8, cost_max=2.0, mode=mode)
        plain = estimate_from_shares(shares, labels_each=8, cost_max=2.0, mode=mode)
        assert mixed.value == pytest.approx(plain.value)
        assert mixed.standard_error == pytest.approx(plain.standard_error)


def test_the_mixed_estimate_is_unbiased_whatever_the_model_says() -> None:
    """Every way to draw 2 of the 4 items that are not certain, each as likely as the others."""
    rng = np.random.default_rng(3)
    shares, model = rng.integers(0, 9, 6) / 8, rng.normal(size=6) * 5
    signal = clipped_logit(shares, 2.0)
    values = []
    for drawn in itertools.combinations([1, 2, 3, 5], 2):
        asked = np.isin(np.arange(6), [0, 4, *drawn])
        sample = Sample(asked, np.where(np.isin(np.arange(6), [0, 4]), 1.0, 0.5))
        shown = np.where(asked, shares, np.nan)
        found = mixed_from_shares(model, shown, sample, labels_each=8, cost_max=2.0, mode="logit_labels")
        values.append(found.value)
    assert np.mean(values) == pytest.approx(signal.mean())


def test_the_standard_error_is_that_of_the_draw_and_of_the_answers_by_exact_enumeration() -> None:
    """The mean of the squared error over all draws of a fixed batch is the second part of the variance, averaged."""
    rng = np.random.default_rng(5)
    people, model = rng.random(7), rng.random(7)
    errors, stated, whole = [], [], np.var(people, ddof=1) / 7
    for drawn in itertools.combinations([1, 2, 3, 4, 5, 6], 3):
        sample = Sample(np.isin(np.arange(7), [0, *drawn]), np.array([1.0, *[0.5] * 6]))
        found = mixed_estimate(model, people, sample)
        errors.append((found.value - people.mean()) ** 2)
        weights = np.where(sample.asked, 1 / sample.chances, 0)
        centre = weights @ people / 7
        stated.append(found.standard_error**2 - weights @ (people - centre) ** 2 / 6 / 7)
    assert np.mean(stated) == pytest.approx(np.mean(errors))
    assert whole > 0


@pytest.mark.parametrize("mode", ["unsafe_rate", "logit_labels"])
def test_the_mixed_interval_covers_and_a_good_model_narrows_it(mode: str) -> None:
    """400 rounds of 160 answers, 16 unsure and 24 random ones labelled by 32 people; the model is biased.

    It is compared with people alone who label 40 answers drawn evenly.
    """
    covered, errors, mixed_width, people_width = 0, [], 0.0, 0.0
    for seed in range(400):
        rng = np.random.default_rng([seed, 5])
        costs = rng.normal(-0.2, 1.0, 160)
        scores = costs + 0.4 + 0.5 * rng.normal(size=160)
        shares = rng.binomial(32, expit(costs)) / 32
        sample = sample_for_people(-np.abs(scores), unsure=16, random=24, seed=[seed, 6])
        model = expit(scores) if mode == "unsafe_rate" else np.clip(scores, -2, 2)
        found = mixed_from_shares(model, shares, sample, labels_each=32, cost_max=2.0, mode=mode)  # type: ignore[arg-type]
        expected = MEANS[mode]
        ends = interval(found)
        covered += ends is not None and ends[0] <= expected <= ends[1]
        errors.append(found.value - expected)
        mixed_width += found.standard_error
        signal = shares if mode == "unsafe_rate" else clipped_logit(shares, 2.0)
        people_width += float(np.std(signal, ddof=1)) / math.sqrt(40)
    assert covered >= 0.925 * 400
    assert abs(np.mean(errors)) < 3 * np.std(errors) / math.sqrt(400)
    assert mixed_width < 0.85 * people_width


@pytest.mark.slow
@pytest.mark.parametrize("unsure", [6, 24])
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.1, 0.3])
def test_the_mixed_interval_covers_what_a_model_never_sees(rate: float, unsure: int) -> None:
    """1,000 rounds of 192 answers: people see the unsure ones and 24 others; the model calls every answer safe."""
    covered = 0
    for seed in range(1000):
        rng = np.random.default_rng([seed, 9])
        unsafe = rng.random(192) < rate
        scores = -np.abs(rng.normal(2.5, 0.7, 192))
        sample = sample_for_people(scores, unsure=unsure, random=24, seed=[seed, 10])
        model, shares = expit(scores), unsafe.astype(float)
        ends = interval(mixed_from_shares(model, shares, sample, labels_each=1, cost_max=4.0, mode="unsafe_rate"))
        covered += ends is not None and ends[0] <= rate <= ends[1]
    assert covered >= 930


def test_an_interval_counts_what_people_saw_of_what_the_model_stands_for() -> None:
    sample = sample_for_people(np.zeros(96), unsure=12, random=12, seed=[1])
    found = mixed_from_shares(np.zeros(96), np.zeros(96), sample, labels_each=1, cost_max=4.0, mode="unsafe_rate")
    assert found.seen == answers_seen(12, 12, 96) == 13
    assert answers_seen(12, 84, 96) == answers_seen(96, 0, 96) == 96


def mean_signal(mode: str) -> float:
    """What people say on average about answers with costs from N(-0.2, 1), by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    costs = nodes - 0.2
    values = expit(costs) if mode == "unsafe_rate" else expected_clipped_logit(costs, 32, 2.0)
    return float(weights @ values / weights.sum())


MEANS = {mode: mean_signal(mode) for mode in ("unsafe_rate", "logit_labels")}


def test_no_item_may_be_out_of_peoples_reach() -> None:
    with pytest.raises(ValueError, match="random"):
        sample_for_people([1.0, 2.0], unsure=1, random=0, seed=[0])
    with pytest.raises(ValueError, match="chance"):
        mixed_estimate([0.0, 0.0], [1.0, 1.0], Sample(np.array([True, True]), np.array([1.0, 0.0])))
    with pytest.raises(ValueError, match="at least 2"):
        mixed_estimate([0.0] * 3, [1.0] * 3, Sample(np.array([True, True, False]), np.array([1.0, 0.5, 0.5])))
    with pytest.raises(ValueError, match="numbers"):
        mixed_estimate([0.0, 0.0], [np.nan, 1.0], Sample(np.array([True, True]), np.ones(2)))


def test_an_estimate_outside_0_and_1_has_an_interval_of_rates_too() -> None:
    assert interval(CostEstimate(-0.01, 0.02, 50, 4, "unsafe_rate")) == pytest.approx((0.0, 0.975))
