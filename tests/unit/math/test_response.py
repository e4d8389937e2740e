"""The curvature of the dual as measured policies show it, where fits follow their multipliers a tenth as far."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from pddpo_ray.parts.dual_step import ascend_all
from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.multipliers.dual import DampedNewton, DualState, limit_state
from pddpo_ray.theory.multipliers.response import MeasuredPolicy, seen_curvature

CURVATURE = np.array([[2.0, -0.6], [-0.6, 1.0]])
NAMES, BETA, ERROR = ("harm", "length"), 0.1, 1e-4


def policy(multipliers: object, costs: object, error: float = 0.0) -> MeasuredPolicy:
    return MeasuredPolicy(*(tuple(np.asarray(one, dtype=float)) for one in (multipliers, costs, [error, error])))


def test_a_response_of_a_tenth_is_a_tenth_of_the_curvature() -> None:
    step = np.array([0.5, 1.0])
    seen = seen_curvature(CURVATURE, [policy([0, 0], [3, 3]), policy(step, 3 - 0.1 * CURVATURE @ step)])
    np.testing.assert_allclose(seen, 0.1 * CURVATURE, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_the_curvature_seen_has_the_newest_difference_and_is_positive_definite(seed: int) -> None:
    draw = np.random.default_rng(seed)
    first, second = draw.uniform(0.2, 1.0, (2, 2))
    policies = [policy([0, 0], [9, 9]), policy(first, 9 - draw.uniform(0.1, 1.0, 2))]
    policies.append(policy(first + second, np.array(policies[-1].costs) - draw.uniform(0.1, 1.0, 2)))
    seen = seen_curvature(CURVATURE, policies)
    np.testing.assert_allclose(seen @ second, np.subtract(policies[1].costs, policies[2].costs), atol=1e-9)
    np.testing.assert_allclose(seen, seen.T, atol=1e-9)
    assert np.linalg.eigvalsh(seen).min() > 0


@pytest.mark.parametrize("costs", [(2.9, 2.95), (3.4, 3.4)])
def test_what_is_within_the_noise_or_rises_with_its_multiplier_shows_nothing(costs: tuple[float, float]) -> None:
    policies = [policy([0, 0], [3, 3], 0.1), policy([1, 1], costs, 0.1)]
    np.testing.assert_array_equal(seen_curvature(CURVATURE, policies), CURVATURE)
    np.testing.assert_array_equal(seen_curvature(CURVATURE, policies[:1]), CURVATURE)


def play(
    seed: int, share: float, *, measured: bool, rounds: int = 4, reward: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Excess of both limits under the first multipliers and after some steps, where a fit of lambda is the exact one of
    share * lambda, beside a reward that likes what costs."""
    draw = np.random.default_rng(seed)
    tables = softmax(draw.normal(size=(6, 8)), axis=1)
    costs = draw.uniform(0.0, 1.0, (2, 6, 8))

    def expected(multipliers: np.ndarray, liked: float = reward) -> tuple[np.ndarray, np.ndarray]:
        gained = liked * costs.sum(axis=0) - share * np.tensordot(multipliers, costs, 1)
        tilted = softmax(np.log(tables) + gained / BETA, axis=1)
        means = (tilted * costs).sum(axis=2)
        products = np.einsum("xy,ixy,jxy->xij", tilted, costs, costs)
        return means.mean(axis=1), (products - np.einsum("ix,jx->xij", means, means)).mean(axis=0)

    wanted = expected(np.array([0.15, 0.25]) / share)[0]
    rule = DampedNewton(rounds, BETA, 0.5, trust=100.0, measured=measured)
    limits = [
        limit_state(name, rho=9.0 / share, first=0.1 / share, rule=rule, limit=limit)
        for name, limit in zip(NAMES, wanted, strict=True)
    ]
    state, first = DualState(tuple(limits)), expected(np.full(2, 0.1 / share))[0] - wanted

    def estimates(means: np.ndarray) -> list[CostEstimate]:
        return [CostEstimate(value, ERROR, 128, 1, constraint=name) for name, value in zip(NAMES, means, strict=True)]

    reference = estimates(expected(np.zeros(2), 0.0)[0])
    for _ in range(rounds):
        means, covariance = expected(np.array(state.multipliers))
        state, _ = ascend_all(state, estimates(means), covariance, reference=reference)
    return np.abs(first), np.abs(expected(np.array(state.multipliers))[0] - wanted)


@pytest.mark.parametrize("seed", range(8))
def test_limits_are_met_in_four_rounds_where_fits_follow_a_tenth_as_far(seed: int) -> None:
    first, seen = play(seed, 0.1, measured=True)
    _, exact = play(seed, 0.1, measured=False)
    assert exact.max() > 0.4 * first.max(), "Newton's own step is a tenth as long"
    assert seen.max() < 0.05 * first.max()


@pytest.mark.parametrize("seed", range(8))
def test_with_exact_fits_both_meet_the_limits(seed: int) -> None:
    first, seen = play(seed, 1.0, measured=True)
    _, exact = play(seed, 1.0, measured=False)
    assert max(seen.max(), exact.max()) < 0.02 * first.max()


@pytest.mark.parametrize("seed", range(8))
def test_a_reward_that_moved_the_first_policy_too_is_told_apart_in_later_rounds(seed: int) -> None:
    """The first difference takes the reward's part for the limits', and the step is too long or too short."""
    first, seen = play(seed, 0.1, measured=True, rounds=7, reward=0.05)
    assert seen.max() < 0.1 * first.max()
