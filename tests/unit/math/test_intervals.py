"""Exact binomial and empirical-Bernstein intervals: against scipy, by hand, and by exact coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import linprog
from scipy.special import expit
from scipy.stats import binom, binomtest

from pddpo_lab.mle import bounded_logistic
from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.estimates.cost_estimate import expected_clipped_logit
from pddpo_ray.theory.estimates.estimate_interval import interval, interval_warning
from pddpo_ray.theory.intervals import (
    binomial_high,
    binomial_low,
    bounded_ends,
    clopper_pearson,
    mean_interval,
    rate_interval,
)


@pytest.mark.parametrize(("successes", "count"), [(0, 10), (10, 10), (3, 288), (1, 32), (17, 40)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_exact_interval_is_scipys(successes: int, count: int, level: float) -> None:
    known = binomtest(successes, count).proportion_ci(level, method="exact")
    assert clopper_pearson(successes, count, level) == pytest.approx((known.low, known.high), abs=1e-9)


def test_each_end_is_the_rate_at_which_the_count_has_the_tails_probability() -> None:
    assert binom.cdf(3, 50, binomial_high(3, 50, 0.05)) == pytest.approx(0.05)
    assert binom.sf(2, 50, binomial_low(3, 50, 0.05)) == pytest.approx(0.05)


@pytest.mark.parametrize("rate", [0.003, 0.02, 0.3, 0.5])
@pytest.mark.parametrize("count", [32, 58, 288])
def test_the_exact_interval_covers_at_its_level_at_every_rate(rate: float, count: int) -> None:
    """Summed over all counts of successes; Wilson's interval covers 0.84 to 0.91 at the smallest of these rates."""
    covered = 0.0
    for successes in range(count + 1):
        low, high = clopper_pearson(successes, count)
        covered += float(binom.pmf(successes, count, rate)) * (low <= rate <= high)
    assert covered >= 0.95


def test_values_between_right_and_wrong_count_by_their_sum() -> None:
    low, high = clopper_pearson(1.5, 40)
    assert clopper_pearson(1, 40)[0] < low < clopper_pearson(2, 40)[0]
    assert clopper_pearson(1, 40)[1] < high < clopper_pearson(2, 40)[1]


def empirical_bernstein(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Interval of the mean of values in [0, 1] for one look (Maurer and Pontil 2009). [n], n >= 2

    mean +- sqrt(2 V ln(4/alpha) / n) + 7 ln(4/alpha) / (3 (n - 1)), V the sample variance.
    """
    array = np.asarray(values, dtype=np.float64)
    log_term = math.log(4.0 / (1.0 - level))
    error = float(array.std(ddof=1)) / math.sqrt(array.size)
    half = math.sqrt(2.0 * log_term) * error + 7.0 * log_term / (3.0 * (array.size - 1))
    return max(0.0, float(array.mean()) - half), min(1.0, float(array.mean()) + half)


def kept(values: NDArray[np.float64]) -> tuple[float, float, int]:
    return float(values.mean()), float(values.std(ddof=1)) / math.sqrt(values.size), values.size


def test_ends_within_stated_bounds_by_hand() -> None:
    """32 values: one stake, b = .9, psi = ln 10 - .9; 32 b d - psi (squares + 32 d^2) = ln 40, its smaller root."""
    values = np.tile([0.45, 0.55], 16)
    psi, squares = math.log(10) - 0.9, 32 * 0.05**2
    distance = min(np.roots([-32 * psi, 32 * 0.9, -psi * squares - math.log(40)]))
    assert bounded_ends(*kept(values), (0.0, 1.0)) == pytest.approx((0.5 - distance, 0.5 + distance))
    mean, error, count = kept(-3.0 + 8.0 * values)
    assert bounded_ends(mean, error, count, (-3.0, 5.0)) == pytest.approx((1 - 8 * distance, 1 + 8 * distance))
    assert bounded_ends(0.5, 0.5, 2, (0.0, 1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("count", [20, 150, 3000])
@pytest.mark.parametrize("rate", [0.01, 0.4])
def test_what_lies_outside_the_ends_was_refuted_by_the_bets_themselves(count: int, rate: float) -> None:
    """One of the stakes, each with its part of the money, has won 1 / tail at both ends: by the product over values."""
    draws = np.random.default_rng([count, int(100 * rate)])
    values = np.where(draws.random(count) < rate, draws.uniform(0.5, 1.0, count), draws.uniform(0.0, 0.1, count))
    low, high = bounded_ends(*kept(values), (0.0, 1.0), 0.9)
    for end, units in ((low, values), (1.0 - high, 1.0 - values)):
        smallest = min(0.9, math.sqrt(8 * math.log(20) / count))
        stakes = np.geomspace(0.9, smallest, 1 + math.ceil(math.log2(0.9 / smallest)))
        wealth = np.exp(np.log1p(stakes[:, None] * (units - end)).sum(axis=1)).max() / stakes.size
        assert end == 0.0 or wealth >= 20.0
    assert count < 3000 or high - low < 2.2 * (empirical_bernstein(values, 0.9)[1] - values.mean())


def test_intervals_of_rates_end_exactly_at_0_and_1() -> None:
    for count in range(1, 200):
        low, high = rate_interval(0, count), rate_interval(count, count)
        assert low is not None
        assert high is not None
        assert (low.low, high.high) == (0.0, 1.0)
    ends = interval(CostEstimate(0.0, 0.1, 30, 20, cost_max=2.0))
    assert ends is not None
    assert ends[1] == pytest.approx(-ends[0])


@pytest.mark.parametrize("labels", [1, 5, 20])
def test_the_interval_of_a_logit_holds_every_mean_cost_that_the_labels_allow(labels: int) -> None:
    """The ends of bets within [-C, C], and the extreme mixtures of costs by linear programs over a grid of costs:
    largest (least) mean cost whose mean clipped logit lies in that interval."""
    estimate = CostEstimate(0.4, 0.1, 40, labels, "logit_labels", "cost", 0.25, cost_max=2.0)
    ends = bounded_ends(0.4, 0.1, 40, (-2.0, 2.0), 0.9)
    grid = np.linspace(-2, 2, 401)
    clipped = expected_clipped_logit(grid, labels, 2.0)
    expected = []
    for sign, end in ((1, ends[0]), (-1, ends[1])):
        end = float(np.clip(end, clipped[0], clipped[-1]))
        found = linprog(sign * grid, A_eq=[np.ones(401), clipped], b_eq=[1.0, end])
        expected.append(sign * float(found.fun))
    assert interval(estimate, 0.9) == pytest.approx(expected, abs=1e-3)


def test_scores_without_stated_bounds_have_no_interval() -> None:
    scores = CostEstimate(0.3, 0.1, 9, 1, "cost_model")
    assert interval(scores) is None
    assert interval_warning(scores) == "no interval: bounds unknown"


def test_intervals_of_a_rate_and_of_a_mean_are_scipys() -> None:
    for successes, count in ((0, 10), (3, 10), (50, 51), (7, 7)):
        found = rate_interval(successes, count)
        known = stats.binomtest(successes, count).proportion_ci(0.95, method="exact")
        assert found is not None
        assert (found.value, found.count) == (successes / count, count)
        assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-9)
    values = [0.3, 1.2, -0.4, 2.0, 0.9]
    found = mean_interval(values)
    assert found is not None
    assert (found.value, found.standard_error, found.count) == pytest.approx((0.8, stats.sem(values), 5))
    grouped = mean_interval([1.0, 3.0, 10.0, 20.0], ["a", "a", "b", "b"])
    assert grouped is not None
    assert (grouped.value, grouped.count) == (8.5, 2)
    alone = mean_interval([4.0])
    assert alone is not None
    assert (alone.value, alone.low, alone.high, alone.count) == (4.0, None, None, 1)
    assert mean_interval([]) is None
    assert rate_interval(0, 0) is None


def test_a_ridge_pulls_scores_from_features_to_where_its_gradient_vanishes() -> None:
    rng = np.random.default_rng([16])
    rows, margins, weights = rng.normal(size=(30, 3)), rng.normal(size=30), rng.uniform(0.5, 2.0, size=30)
    theta = bounded_logistic(rows, margins=margins, weights=weights, ridge=2.0)
    gradient = 2.0 * theta - rows.T @ (weights * expit(-(rows @ theta + margins)))
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)
    bounded = bounded_logistic(rows, margins=margins, weights=weights, bound=0.05)
    assert np.abs(bounded).max() == 0.05
    assert bounded_logistic(np.zeros((0, 2))).tolist() == [0.0, 0.0]
