"""Exact binomial and empirical-Bernstein intervals: against scipy, by hand, and by exact coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from pddpo_ray.theory.intervals import bernstein_ends, binomial_high, binomial_low, clopper_pearson, empirical_bernstein


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


def test_empirical_bernstein_by_hand() -> None:
    """mean 0.5, V = 1/3 (n = 4: 0 0 1 1): half = sqrt(2/3 L / 4) + 7 L / 9 with L = ln 80 is wider than [0, 1]."""
    assert empirical_bernstein([0.0, 0.0, 1.0, 1.0]) == (0.0, 1.0)
    values = np.tile([0.4, 0.6], 500)
    log_term = math.log(80)
    half = math.sqrt(2 * float(np.var(values, ddof=1)) * log_term / 1000) + 7 * log_term / (3 * 999)
    assert empirical_bernstein(values) == pytest.approx((0.5 - half, 0.5 + half))
    assert empirical_bernstein([0.3]) == (0.0, 1.0)
    ends = bernstein_ends(float(values.mean()), float(np.std(values, ddof=1)) / math.sqrt(1000), 1000, (0.0, 1.0))
    assert ends == pytest.approx(empirical_bernstein(values))
    low, high = bernstein_ends(10.0, 0.5, 101, (0.0, 40.0))
    assert (10.0 - low, high - 10.0) == pytest.approx((half := math.sqrt(2 * log_term) / 2 + 2.8 * log_term / 3, half))
