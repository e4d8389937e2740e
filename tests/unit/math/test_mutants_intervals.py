"""Intervals and ridge against scipy and arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog
from scipy.special import expit

from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.cost_estimate import expected_clipped_logit, interval, interval_warning
from pddpo_ray.theory.intervals import bounded_ends, mean_interval, rate_interval
from pddpo_ray.theory.mle import bounded_logistic


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
