"""Estimates with missing labels and with a model's help, against exact enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from pddpo_ray.annotation.estimates import draw_for_people, inclusion_probabilities, mixed_estimate, three_fillings
from pddpo_ray.cost_estimate import estimate_from_shares
from pddpo_ray.records import CostEstimate


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
    assert fillings.straddles(0.5)
    assert not fillings.straddles(0.7)


def test_fillings_agree_when_nothing_is_missing_and_say_when_nothing_is_there() -> None:
    fillings = three_fillings([1, 2], [4, 4], 4, rate)
    assert fillings.observed == fillings.all_safe == fillings.all_unsafe
    assert three_fillings([0, 0], [0, 0], 4, rate).observed is None
    with pytest.raises(ValueError, match="labelled"):
        three_fillings([3], [2], 4, rate)


def test_the_mixed_estimate_is_unbiased_whatever_the_model_says() -> None:
    """Every one of the 2^6 choices of whom to ask, weighted by its probability."""
    rng = np.random.default_rng(3)
    people, model = rng.random(6), rng.normal(size=6) * 5
    chances = inclusion_probabilities(np.arange(6), certain=2, random_share=0.3)
    assert chances.tolist() == [0.3, 0.3, 0.3, 0.3, 1.0, 1.0]
    mean = total = 0.0
    for bits in itertools.product([False, True], repeat=6):
        asked = np.array(bits)
        weight = float(np.prod(np.where(asked, chances, 1 - chances)))
        shown = np.where(asked, people, np.nan)
        mean += weight * mixed_estimate(model, shown, asked, chances).value if weight else 0.0
        total += weight
    assert total == pytest.approx(1)
    assert mean == pytest.approx(people.mean())


def test_the_mixed_interval_covers_and_a_good_model_narrows_it() -> None:
    covered, widths = 0, {"good": 0.0, "none": 0.0}
    for seed in range(300):
        rng = np.random.default_rng([seed, 5])
        truth = rng.random(200)
        votes = (rng.random(200) < truth).astype(float)
        chances = np.full(200, 0.4)
        asked = draw_for_people(chances, [seed, 6])
        for name, model in {"good": truth, "none": np.full(200, 0.5)}.items():
            estimate = mixed_estimate(model, votes, asked, chances)
            widths[name] += estimate.standard_error
            if name == "good":
                covered += abs(estimate.value - 0.5) <= 1.96 * estimate.standard_error
    assert 270 <= covered <= 296
    assert widths["good"] < 0.97 * widths["none"]


def test_no_item_may_be_out_of_peoples_reach() -> None:
    with pytest.raises(ValueError, match="random_share"):
        inclusion_probabilities([1.0], certain=0, random_share=0.0)
    with pytest.raises(ValueError, match="chance"):
        mixed_estimate([0.0, 0.0], [1.0, 1.0], [True, True], [1.0, 0.0])
    assert math.isclose(mixed_estimate([0.0, 0.0], [1.0, 0.0], [True, True], [1.0, 1.0]).value, 0.5)
