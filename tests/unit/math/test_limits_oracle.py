"""The optimum under limits against twelve worlds that were solved apart, and against scipy and hand counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize
from scipy.special import expit

from pddpo_ray.limits.quantities import Amount, Limit, Quantity
from pddpo_ray.theory.estimates.prompt_sets import prompt_sets
from pddpo_ray.theory.multipliers.feasibility import largest_margin
from pddpo_ray.theory.multipliers.several_limits import LagrangianDual, kkt_residual, minimise
from pddpo_ray.worlds.oracle import Oracle
from tests.support.true_limits import TrueLimit, under_limits

Array = NDArray[np.float64]
CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "limits.json").read_text(encoding="utf-8")
)


def best_by_comparisons(dual: LagrangianDual, costs: Array) -> tuple[float, Array]:
    """Best policy of the family exp((r - lambda c) / beta) under the dual's only limit, and its lambda. costs [X, Y]

    The family that a stage on comparisons ends in, when they are about `costs` (logits) and the limit is about
    something else that rises with them, a rate.
    """
    family = LagrangianDual(dual.log_reference, dual.reward, np.asarray(costs)[None], dual.prior, dual.beta)

    def violation(multiplier: float) -> float:
        return float(dual.violations(family.policy(np.array([multiplier])))[0])

    if violation(0.0) <= 0:
        return 0.0, family.policy(np.zeros(1))
    low, high = 0.0, 1.0
    while violation(high) > 0:
        low, high = high, 2.0 * high
        assert high < 1e6, "no policy of this family keeps the limit"
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if violation(middle) > 0 else (low, middle)
    return high, family.policy(np.array([high]))


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}: {CASES[n]['kind']}")
def test_twelve_worlds_have_the_optimum_that_was_computed_apart(number: int) -> None:
    case = CASES[number]
    stated, reference = case["optimum"], np.array(case["reference"])
    lists = {name: entry["prompts"] for name, entry in case["prompt_sets"].items()}
    sets = prompt_sets(lists, {name: entry["share"] for name, entry in case["prompt_sets"].items()})
    limits = []
    for one in case["limits"]:
        least = "at_least" in one
        bound = Amount(Quantity(one["quantity"], "", one["over"]), one["at_least" if least else "at_most"])
        limits.append(TrueLimit(Limit(one["name"], bound, least), np.array(one["measure"])))
    world = Oracle(np.ones(len(reference)), reference, np.array(case["reward"]), np.zeros_like(reference), case["beta"])
    oracle = under_limits(world, limits, sets)
    best = oracle.optimum
    np.testing.assert_allclose(oracle.prior, stated["prompt_weights"], atol=1e-12)
    np.testing.assert_allclose([best.multiplier, *best.further_multipliers], stated["multipliers"], atol=1e-7)
    assert best.f == pytest.approx(stated["f"], abs=1e-7)
    assert oracle.kl(best.policy) == pytest.approx(stated["kl"], abs=1e-7)
    np.testing.assert_allclose(best.policy, stated["policy"], atol=1e-7)
    values = [limit.value(oracle, best.policy, sets) for limit in limits]
    np.testing.assert_allclose(values, stated["values"], atol=1e-7)


def drawn(seed: int, limits: int = 3, prompts: int = 6, answers: int = 12) -> LagrangianDual:
    """A dual whose limits lie between what is least and what the reward's optimum does, one far from binding."""
    rng = np.random.default_rng([seed, 77])
    reference = rng.dirichlet(np.ones(answers), prompts)
    reward = rng.normal(size=(prompts, answers))
    shared = rng.normal(size=(prompts, answers))
    costs = expit(0.7 * shared + rng.normal(size=(limits, prompts, answers)) - 1.0)
    prior = rng.dirichlet(5 * np.ones(prompts))
    free = LagrangianDual(np.log(reference), reward, costs, prior, 0.2)
    least, most = (costs.min(axis=2) @ prior), free.violations(free.policy(np.zeros(limits)))
    levels = least + rng.uniform(0.5, 0.9, limits) * (most - least)
    levels[-1] = 0.95
    return LagrangianDual(np.log(reference), reward, costs - levels[:, None, None], prior, 0.2)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("upper", [np.inf, 0.4])
def test_the_minimum_in_a_box_satisfies_kkt_and_equals_scipys(seed: int, upper: float) -> None:
    dual = drawn(seed)
    found = minimise(dual, upper)
    slope = -dual.violations(dual.policy(found))
    assert kkt_residual(found, slope, upper) <= 1e-10
    bounds = [(0.0, None if np.isinf(upper) else upper)] * 3
    other = minimize(dual.value, np.full(3, 0.1), method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-15})
    assert dual.value(found) <= other.fun + 1e-12
    np.testing.assert_allclose(found, other.x, atol=5e-3)


def test_the_kkt_residual_by_hand() -> None:
    """Inside: the slope itself. At 0 a slope upwards is right, at the upper end a slope downwards."""
    assert kkt_residual(np.array([0.5]), np.array([0.01])) == pytest.approx(0.01)
    assert kkt_residual(np.array([0.0, 2.0]), np.array([3.0, -3.0]), 2.0) == 0.0
    assert kkt_residual(np.array([0.0]), np.array([-0.2])) == pytest.approx(0.2)


@pytest.mark.parametrize("seed", range(6))
def test_the_largest_margin_equals_a_linear_program_over_policies(seed: int) -> None:
    dual = drawn(seed)
    prompts, answers = dual.reward.shape
    rng = np.random.default_rng(seed)
    support = rng.random((prompts, answers)) < 0.7
    support[:, 0] = True
    rows = np.kron(np.eye(prompts), np.ones(answers))
    costs = (dual.prior[:, None] * dual.excess).reshape(3, -1)
    solved = linprog(
        [*np.zeros(prompts * answers), -1.0],
        A_ub=np.column_stack([costs, np.ones(3)]),
        b_ub=np.zeros(3),
        A_eq=np.column_stack([rows, np.zeros(prompts)]),
        b_eq=np.ones(prompts),
        bounds=[(0.0, 1.0 if held else 0.0) for held in support.ravel()] + [(None, None)],
    )
    margin, policy = largest_margin(dual.excess, dual.prior, support)
    assert margin == pytest.approx(-solved.fun, abs=1e-9)
    assert max(dual.violations(policy)) == pytest.approx(-margin, abs=1e-9)
    assert not policy[~support].any()
    np.testing.assert_allclose(policy.sum(axis=1), 1.0)


@pytest.mark.parametrize("level", [0.3, 0.1, 0.03])
def test_comparisons_end_in_a_family_that_loses_helpfulness_at_the_same_rate(level: float) -> None:
    """A rate limit's optimum tilts by the rate itself. The family that tilts by its logit does worse, on all of 20
    worlds; where costs take two values in all, the two families are one."""
    lost = []
    for seed in range(20):
        rng = np.random.default_rng([seed, 5])
        reference, reward = rng.dirichlet(np.ones(10), 5), rng.normal(size=(5, 10))
        costs = np.clip(3 * rng.normal(size=(5, 10)), -6.0, 6.0)
        costs[:, 0] = -6.0
        reward += 0.3 * costs
        dual = LagrangianDual(np.log(reference), reward, expit(costs)[None] - level, np.full(5, 0.2), 0.2)
        best = dual.value(minimise(dual))
        _, policy = best_by_comparisons(dual, costs)
        value = float(np.mean(np.sum(policy * (reward - 0.2 * np.log(policy / reference)), axis=1)))
        assert abs(dual.violations(policy)[0]) < 1e-9
        lost.append(best - value)
    assert min(lost) > -1e-9
    assert 0.005 < np.median(lost) < 0.5


def test_with_two_values_of_cost_comparisons_reach_the_optimum() -> None:
    rng = np.random.default_rng(1)
    reference, reward = rng.dirichlet(np.ones(10), 5), rng.normal(size=(5, 10))
    costs = np.where(rng.random((5, 10)) < 0.5, -3.0, 1.0)
    costs[:, 0] = -3.0
    dual = LagrangianDual(np.log(reference), reward, expit(costs)[None] - 0.15, np.full(5, 0.2), 0.2)
    _, policy = best_by_comparisons(dual, costs)
    np.testing.assert_allclose(policy, dual.policy(minimise(dual)), atol=1e-8)
