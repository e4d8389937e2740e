"""A limit on the KL to the reference, alone and with others: the optimum against scipy, nested roots and hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, NonlinearConstraint, brentq, minimize
from scipy.special import expit, softmax, xlogy

from pddpo_ray.limits.quantities import Amount, Quantity
from pddpo_ray.limits.quantities import Limit as StatedLimit
from pddpo_ray.theory.multipliers.feasibility import KlTerm, largest_margin, reach
from pddpo_ray.theory.multipliers.several_limits import LagrangianDual, kkt_residual, minimise
from pddpo_ray.worlds.oracle import InfeasibleError, Limit, Oracle
from tests.support.true_limits import TrueLimit, under_limits

Array = NDArray[np.float64]
BETA = 0.2


def world(seed: int, prompts: int = 3, answers: int = 5) -> Oracle:
    """A world whose first cost is a rate; its own limit never binds."""
    rng = np.random.default_rng([seed, 18])
    reward, costs = rng.normal(size=(2, prompts, answers))
    reference = rng.dirichlet(np.ones(answers), prompts)
    return Oracle(rng.dirichlet(5 * np.ones(prompts)), reference, reward, expit(costs), BETA, threshold=1.0)


def drift(oracle: Oracle, nats: float, name: str = "drift") -> Limit:
    return Limit(name, np.zeros_like(oracle.reference), nats, kl=1.0)


def kl_by_hand(oracle: Oracle, policy: Array) -> float:
    return float(oracle.prior @ (xlogy(policy, policy) - xlogy(policy, oracle.reference)).sum(axis=1))


def tilted(oracle: Oracle, temperature: float, rate: float = 0.0) -> Array:
    return np.asarray(
        softmax(np.log(oracle.reference) + (oracle.reward - rate * oracle.cost) / temperature, axis=1), dtype=np.float64
    )


def by_slsqp(oracle: Oracle, nats: float, rate: float) -> Array:
    """argmax f over all tables with KL <= nats and E[cost] <= rate, knowing nothing of multipliers."""
    shape, weight = oracle.reference.shape, oracle.prior[:, None]

    def minus_f(flat: Array) -> float:
        policy = flat.reshape(shape)
        return -float((weight * policy * oracle.reward).sum()) + BETA * kl_by_hand(oracle, policy)

    def kl_slope(flat: Array) -> Array:
        return np.asarray((weight * (np.log(flat.reshape(shape) / oracle.reference) + 1.0)).ravel())

    rows = np.kron(np.eye(shape[0]), np.ones(shape[1]))
    found = minimize(
        minus_f,
        oracle.reference.ravel(),
        jac=lambda flat: BETA * kl_slope(flat) - (weight * oracle.reward).ravel(),
        method="SLSQP",
        bounds=[(1e-12, 1.0)] * oracle.reference.size,
        constraints=[
            LinearConstraint(rows, 1.0, 1.0),
            LinearConstraint((weight * oracle.cost).ravel(), -np.inf, rate),
            NonlinearConstraint(lambda flat: kl_by_hand(oracle, flat.reshape(shape)), -np.inf, nats, jac=kl_slope),
        ],
        options={"maxiter": 1000, "ftol": 1e-15},
    )
    return np.asarray(found.x.reshape(shape))


@pytest.mark.parametrize("seed", range(4))
def test_alone_it_is_the_reward_tilt_at_the_temperature_whose_kl_is_the_limit(seed: int) -> None:
    free = world(seed)
    nats = 0.4 * kl_by_hand(free, tilted(free, BETA))
    temperature = brentq(lambda value: kl_by_hand(free, tilted(free, value)) - nats, BETA, 100.0, xtol=1e-14)
    cost = np.zeros_like(free.reference)
    for alone in (
        replace(free, cost=cost, threshold=nats, first_kl=1.0),
        replace(free, further=(drift(free, nats),)),
    ):
        best = alone.optimum
        multiplier = best.multiplier if alone.first_kl else best.further_multipliers[0]
        assert BETA + multiplier == pytest.approx(temperature, abs=1e-8)
        np.testing.assert_allclose(best.policy, tilted(free, temperature), atol=1e-8)
        assert kl_by_hand(free, best.policy) == pytest.approx(nats, abs=1e-9)
    first = replace(free, cost=cost, threshold=nats, first_kl=1.0)
    np.testing.assert_allclose(first.policy(first.optimum.multiplier), first.optimum.policy, atol=1e-12)
    assert first.dual(first.optimum.multiplier) == pytest.approx(first.optimum.f, abs=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_with_a_rate_it_is_what_scipy_and_nested_roots_find(seed: int) -> None:
    free = world(seed)
    greedy = tilted(free, BETA)
    nats = 0.5 * kl_by_hand(free, greedy)
    middle = tilted(free, brentq(lambda value: kl_by_hand(free, tilted(free, value)) - nats, BETA, 100.0))
    lowest = float(free.prior @ free.cost.min(axis=1))
    rate = 0.8 * float(free.expectations(middle, free.cost)) + 0.2 * lowest
    both = replace(free, threshold=rate, further=(drift(free, nats),))
    best = both.optimum
    multipliers = np.array([best.multiplier, *best.further_multipliers])
    assert multipliers.min() > 1e-3
    # scipy, which does not know the form of the answer
    apart = by_slsqp(both, nats, rate)
    np.testing.assert_allclose(best.policy, apart, atol=2e-5)
    assert both.f(apart) <= best.f + 1e-7
    assert both.f(apart) == pytest.approx(best.f, abs=1e-6)

    # nested roots, which know it
    def temperature(price: float) -> float:
        return brentq(lambda value: kl_by_hand(both, tilted(both, value, price)) - nats, 1e-2, 1e3, xtol=1e-14)

    price = brentq(
        lambda value: float(both.expectations(tilted(both, temperature(value), value), both.cost)) - rate,
        0.0,
        50.0,
        xtol=1e-14,
    )
    np.testing.assert_allclose(multipliers, [price, temperature(price) - BETA], atol=1e-7)
    # KKT, and strong duality
    dual = LagrangianDual(
        np.log(both.reference), both.reward, both._excess(), both.prior, BETA, kl=np.array([0.0, 1.0])
    )
    assert kkt_residual(multipliers, -dual.violations(best.policy)) <= 1e-9
    assert dual.value(multipliers) == pytest.approx(best.f, abs=1e-9)


def test_the_duals_slope_and_curvature_are_differences_of_its_values() -> None:
    free = world(5)
    rng = np.random.default_rng(7)
    excess = np.stack([free.cost - 0.3, np.full_like(free.cost, -0.4), rng.normal(size=free.cost.shape)])
    dual = LagrangianDual(np.log(free.reference), free.reward, excess, free.prior, BETA, kl=np.array([0.0, 1.0, 0.5]))
    at, step = np.array([0.3, 0.2, 0.1]), 1e-4 * np.eye(3)
    slope = -dual.violations(dual.policy(at))
    np.testing.assert_allclose(slope, [(dual.value(at + one) - dual.value(at - one)) / 2e-4 for one in step], atol=1e-7)
    hessian = dual.covariance(dual.policy(at)) / dual.temperature(at)
    slopes = [-dual.violations(dual.policy(at + one)) + dual.violations(dual.policy(at - one)) for one in step]
    np.testing.assert_allclose(hessian, np.array(slopes) / 2e-4, atol=1e-6)


def test_a_slack_limit_changes_nothing_and_a_multiplier_is_the_price_of_its_limit() -> None:
    free = world(1)
    full = kl_by_hand(free, tilted(free, BETA))
    slack = replace(free, further=(drift(free, 2.0 * full),))
    assert slack.optimum.further_multipliers == (0.0,)
    np.testing.assert_allclose(slack.optimum.policy, tilted(free, BETA), atol=1e-12)

    def best_f(nats: float) -> float:
        return replace(free, further=(drift(free, nats),)).optimum.f

    nats = 0.3 * full
    price = replace(free, further=(drift(free, nats),)).optimum.further_multipliers[0]
    assert (best_f(nats + 1e-4) - best_f(nats - 1e-4)) / 2e-4 == pytest.approx(price, rel=1e-5)


@pytest.mark.slow
def test_many_answers_and_three_limits_end_at_kkt() -> None:
    rng, solved = np.random.default_rng([3, 18]), 0
    for seed in range(20):
        free = world(seed, prompts=6, answers=40)
        weight = np.array([0.0, 0.0, 1.0 / 3.0])
        words = rng.uniform(size=free.cost.shape)
        greedy = tilted(free, BETA)
        levels = [0.7 * float(free.expectations(greedy, one)) for one in (free.cost, words)]
        lowest = [1.2 * float(free.prior @ one.min(axis=1)) for one in (free.cost, words)]
        levels = [max(ends) for ends in zip(levels, lowest, strict=True)]
        nats = 0.6 * kl_by_hand(free, greedy)
        excess = np.stack([free.cost - levels[0], words - levels[1], np.full_like(words, -nats / 3.0)])
        dual = LagrangianDual(np.log(free.reference), free.reward, excess, free.prior, BETA, kl=weight)
        margin, _ = largest_margin(excess, free.prior, free.reference > 0, KlTerm(weight, np.log(free.reference)))
        if margin > 1e-3:
            multipliers = minimise(dual)
            assert kkt_residual(multipliers, -dual.violations(dual.policy(multipliers))) <= 1e-8
            solved += 1
    assert solved >= 10


def test_gap_and_rho_count_a_broken_limit_on_the_kl() -> None:
    free = world(2)
    nats = 0.3 * kl_by_hand(free, tilted(free, BETA))
    oracle = replace(free, further=(drift(free, nats),))
    greedy = tilted(free, BETA)
    (over,) = oracle.further_g(greedy)
    assert over == pytest.approx(kl_by_hand(free, greedy) - nats, abs=1e-12)
    assert oracle.gap(greedy) == pytest.approx(oracle.optimum.f - free.f(greedy) + 2 * oracle.rho * over, abs=1e-10)
    assert oracle.gap(greedy) > 0
    assert oracle.rho >= sum(oracle.optimum.further_multipliers)
    assert oracle.gap(oracle.optimum.policy) == pytest.approx(0.0, abs=1e-9)


def test_how_far_a_rate_can_fall_within_a_kl_is_found_and_beyond_it_refused() -> None:
    free = world(0)
    nats = 0.2

    def lowest_rate() -> float:
        """On the path reference * exp(-cost / t), which is where a rate is least at its KL."""
        policy = lambda value: softmax(np.log(free.reference) - free.cost / value, axis=1)  # noqa: E731
        value = brentq(lambda value: kl_by_hand(free, policy(value)) - nats, 1e-2, 100.0, xtol=1e-14)
        return float(free.expectations(policy(value), free.cost))

    least = lowest_rate()
    for rate, kept in ((least + 1e-3, True), (least - 1e-3, False)):
        excess = np.stack([free.cost - rate, np.full_like(free.cost, -nats)])
        term = KlTerm(np.array([0.0, 1.0]), np.log(free.reference))
        found = reach(excess, free.prior, kl=term)
        assert found.jointly is kept
        np.testing.assert_allclose(found.lowest, [free.prior @ free.cost.min(axis=1) - rate, -nats])
        assert (found.together <= 1e-6 - found.margin).all()
    with pytest.raises(InfeasibleError, match="cannot be met together"):
        _ = replace(free, threshold=least - 1e-3, further=(drift(free, nats),)).optimum
    assert replace(free, threshold=least + 1e-3, further=(drift(free, nats),)).optimum.multiplier > 0


def test_the_truth_of_a_stated_kl_limit_is_in_nats() -> None:
    free = world(3)
    greedy = tilted(free, BETA)
    nats = 0.5 * kl_by_hand(free, greedy)
    stated = StatedLimit("drift", Amount(Quantity("kl", "nats"), nats))
    one = TrueLimit(stated, np.zeros_like(free.reference))
    oracle = under_limits(free, [one])
    assert one.value(oracle, oracle.optimum.policy) == pytest.approx(nats, abs=1e-9)
    assert one.value(oracle, greedy) == pytest.approx(kl_by_hand(free, greedy), abs=1e-12)
    assert oracle.g(greedy) == pytest.approx(kl_by_hand(free, greedy) - nats, abs=1e-12)
