"""Intervals and ridge against scipy and arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.cost_estimate import interval
from pddpo_ray.theory.intervals import mean_interval, rate_interval
from pddpo_ray.theory.mle import bounded_logistic


def test_interval_is_students_t_with_n_less_1_degrees_of_freedom() -> None:
    """And from 20 labels on the allowance for the logit's bias on either side."""
    for labels, allowance in ((5, 0.0), (20, 0.25)):
        estimate = CostEstimate(0.3, 0.1, 9, labels, "logit_labels", "cost", 0.25)
        low, high = stats.t.interval(0.9, df=8, loc=0.3, scale=0.1)
        assert interval(estimate, 0.9) == pytest.approx((low - allowance, high + allowance))


def test_intervals_of_a_rate_and_of_a_mean_are_scipys() -> None:
    for successes, count in ((0, 10), (3, 10), (50, 51), (7, 7)):
        found = rate_interval(successes, count)
        wilson = stats.binomtest(successes, count).proportion_ci(0.95, method="wilson")
        assert found is not None
        assert (found.value, found.count) == (successes / count, count)
        assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), abs=1e-12)
    values = [0.3, 1.2, -0.4, 2.0, 0.9]
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, df=4, loc=np.mean(values), scale=stats.sem(values))
    assert found is not None
    assert (found.value, found.low, found.high, found.count) == pytest.approx((0.8, low, high, 5))
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
