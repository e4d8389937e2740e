"""Box-constrained maximum likelihood against scipy and by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from pddpo_lab.mle import PAIRS_PER_RIDGE, box_mle, gradient, negative_log_likelihood, win_counts


def random_wins(seed: int, pairs: int, size: int = 6) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scores = 1.5 * generator.normal(size=size)
    totals = np.triu(generator.multinomial(pairs, np.full(size * size, 1 / size**2)).reshape(size, size), 1)
    first = generator.binomial(totals, expit(scores[:, None] - scores[None]))
    return (first + (totals - first).T).astype(float)


def test_two_answers_by_hand() -> None:
    """Answer 0 wins 3 of 4: s0 - s1 = logit(3/4) = ln 3, split evenly by the ridge."""
    scores = box_mle(np.array([[0.0, 3e6], [1e6, 0.0]]), 2.0)
    assert scores == pytest.approx([math.log(3) / 2, -math.log(3) / 2], abs=1e-8)


@pytest.mark.parametrize("pairs", [1e3, 1e9, 1e13, 1e16])
def test_the_number_of_pairs_does_not_change_the_solution_of_the_same_shares(pairs: Any) -> None:
    """Theory mode has up to 1e13 pairs a round: the expected labels must give the scores back."""
    scores = np.array([0.9, -0.4, 0.3, -0.8])
    wins = pairs * expit(scores[:, None] - scores[None]) * (1 - np.eye(4))
    assert box_mle(wins, 2.0) == pytest.approx(scores, abs=1e-3 if pairs < 1e6 else 1e-5)


def test_scores_stop_at_the_box() -> None:
    assert box_mle(np.array([[0.0, 1000.0], [0.0, 0.0]]), 2.0) == pytest.approx([2.0, -2.0])


def test_answers_in_no_pair_get_score_zero() -> None:
    wins = np.zeros((5, 5))
    wins[0, 1] = 7.0
    assert box_mle(wins, 2.0)[2:].tolist() == [0.0, 0.0, 0.0]


def test_a_weight_counts_like_that_many_pairs() -> None:
    index = np.array([0, 0, 0])
    once = win_counts(index, index, index + 1, shape=(1, 3))
    weighted = win_counts(index[:1], index[:1], index[:1] + 1, shape=(1, 3), weights=np.array([3.0]))
    np.testing.assert_array_equal(once, weighted)


@given(st.integers(0, 1000), st.integers(1, 800), st.booleans())
@settings(max_examples=25, deadline=None)
def test_two_solvers_agree_with_and_without_offsets(seed: int, pairs: Any, shifted: bool) -> None:
    """With a ridge of 0.01, because L-BFGS-B crawls along the common shift that a tiny ridge leaves nearly flat."""
    wins = random_wins(seed, pairs)
    bonus = np.random.default_rng(seed).uniform(0, 1, 6) if shifted else np.zeros(6)
    offsets = bonus[:, None] - bonus[None]
    found = minimize(
        lambda s: (float(negative_log_likelihood(s, wins, offsets, 0.01)), gradient(s, wins, offsets, 0.01)),
        np.zeros(6), jac=True, method="L-BFGS-B", bounds=[(-2.0, 2.0)] * 6,
        options={"ftol": 0.0, "gtol": 1e-11, "maxiter": 20_000, "maxfun": 40_000, "maxcor": 30},
    )  # fmt: skip
    ours = box_mle(wins, 2.0, offsets=offsets, ridge=0.01)
    assert negative_log_likelihood(ours, wins, offsets, 0.01) <= found.fun + 1e-9
    np.testing.assert_allclose(ours, found.x, atol=1e-5)


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_gradient_agrees_with_finite_differences(seed: int) -> None:
    wins, generator = random_wins(seed, 50), np.random.default_rng(seed)
    at = generator.uniform(-2, 2, 6)
    steps = 1e-6 * np.eye(6)
    numeric = [(negative_log_likelihood(at + s, wins) - negative_log_likelihood(at - s, wins)) / 2e-6 for s in steps]
    np.testing.assert_allclose(gradient(at, wins), numeric, atol=1e-6)


def test_problems_solved_together_equal_problems_solved_alone_and_warm_starts_change_nothing() -> None:
    wins = np.stack([random_wins(seed, 300) for seed in range(5)])
    together = box_mle(wins, 2.0)
    np.testing.assert_allclose(together, [box_mle(one, 2.0) for one in wins], atol=1e-9)
    np.testing.assert_allclose(box_mle(wins, 2.0, start=-together), together, atol=1e-6)


def test_a_table_with_very_many_pairs_changes_no_other_tables_scores() -> None:
    rng = np.random.default_rng([6])
    few, many = rng.integers(0, 5, size=(2, 4, 4)).astype(float)
    together = box_mle(np.stack([few, many * PAIRS_PER_RIDGE]), 3.0)
    np.testing.assert_allclose(together[0], box_mle(few, 3.0), atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_newtons_steps_find_scipys_minimum_from_any_start(seed: int) -> None:
    """From far outside, where full steps overshoot, with offsets and a strong ridge, inside a box that binds."""
    rng = np.random.default_rng([seed, 9])
    wins = rng.integers(0, 9, size=(1, 5, 5)).astype(float)
    wins[0][np.diag_indices(5)] = 0.0
    offsets = rng.normal(size=(1, 5, 5)) * 2
    start = rng.normal(size=(1, 5)) * 30
    for bound, ridge in ((1.0, 1e-2), (40.0, 0.5)):
        found = box_mle(wins, bound, offsets=offsets, start=start, ridge=ridge)
        best = minimize(
            lambda s, ridge=ridge: float(negative_log_likelihood(s, wins[0], offsets[0], ridge)),
            np.zeros(5),
            jac=lambda s, ridge=ridge: gradient(s, wins[0], offsets[0], ridge),
            bounds=[(-bound, bound)] * 5,
            options={"ftol": 1e-15, "gtol": 1e-10},
        )
        np.testing.assert_allclose(found[0], best.x, atol=1e-5)


def test_the_objective_by_hand() -> None:
    """3 wins and 1 loss at scores (.5, -.5), offset .2 for the wins, ridge 2: 3 sp(-.8) + sp(1) + .5."""
    wins = np.array([[0.0, 3.0], [1.0, 0.0]])
    offsets = np.array([[0.0, 0.2], [0.0, 0.0]])
    expected = 3 * math.log1p(math.exp(-0.8)) + math.log1p(math.exp(1.0)) + 0.5
    assert negative_log_likelihood(np.array([0.5, -0.5]), wins, offsets, 2.0) == pytest.approx(expected)
