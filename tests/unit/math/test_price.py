"""The price of a limit against the exact slope of f*, and its interval against simulated rounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.theory.price import multiplier_errors, price
from pddpo_ray.theory.prompt_sets import prompt_sets
from pddpo_ray.theory.several_limits import LagrangianDual, minimise

ORACLE = json.loads((Path(__file__).parents[2] / "data" / "limits.json").read_text())


def best(world: dict, change: float) -> float:
    """f* with the first limit looser by `change`: the dual's least value."""
    sets = prompt_sets(
        {n: s["prompts"] for n, s in world["prompt_sets"].items()},
        {n: s["share"] for n, s in world["prompt_sets"].items()},
    )
    excess = []
    for index, limit in enumerate(world["limits"]):
        sign = -1.0 if "at_least" in limit else 1.0
        bound = sign * limit.get("at_most", limit.get("at_least")) + (change if index == 0 else 0.0)
        excess.append(sign * np.array(limit["measure"]) * sets.factor(limit["over"])[:, None] - bound)
    reference = np.log(np.array(world["reference"]))
    dual = LagrangianDual(reference, np.array(world["reward"]), np.array(excess), sets.weights, world["beta"])
    return dual.value(minimise(dual))


@pytest.mark.parametrize("world", ORACLE, ids=lambda world: world["kind"])
def test_the_price_is_the_slope_of_the_best_helpfulness(world: dict) -> None:
    multiplier, change = world["optimum"]["multipliers"][0], 1e-4
    assert best(world, 0.0) == pytest.approx(world["optimum"]["f"], abs=1e-7)
    gain = best(world, change) - best(world, -change)
    assert price(multiplier, 0.0, 2 * change).gain == pytest.approx(gain, rel=2e-3)


@pytest.mark.parametrize("world", ORACLE[:6], ids=lambda world: world["kind"])
def test_what_a_looser_limit_gains_is_at_most_its_price(world: dict) -> None:
    shown = price(world["optimum"]["multipliers"][0], 0.0, 0.02)
    assert 0.0 < best(world, 0.02) - best(world, 0.0) <= shown.gain + 1e-9


def test_a_price_by_hand() -> None:
    """2 per unit, standard error .5, looser by .02: .04, from (2 - .98) * .02 to (2 + .98) * .02; one win point."""
    found = price(2.0, 0.5, 0.02)
    assert (found.gain, found.low, found.high) == pytest.approx((0.04, 0.0204, 0.0596), abs=1e-6)
    assert found.win_points == pytest.approx(1.0)
    assert price(0.1, 0.5, 0.02).low == 0.0


def test_the_interval_holds_multipliers_of_simulated_rounds() -> None:
    """Newton's step with noisy excesses on a quadratic dual: the spread of late multipliers is the formula's."""
    generator = np.random.default_rng(0)
    covariance, errors, beta, damping = np.array([[0.2, 0.05], [0.05, 0.1]]), np.array([0.02, 0.03]), 0.2, 0.5
    hessian = covariance / beta
    optimum = np.array([2.0, 3.0])
    multipliers = np.tile(optimum, (20000, 1))
    for _ in range(25):
        excess = (optimum - multipliers) @ hessian + errors * generator.normal(size=multipliers.shape)
        multipliers = multipliers + damping * excess @ np.linalg.inv(hessian)
    found = multiplier_errors(covariance, errors, [True, True], beta=beta, damping=damping)
    np.testing.assert_allclose(multipliers.std(axis=0), found, rtol=0.03)


def test_a_limit_that_does_not_bind_has_no_error() -> None:
    errors = multiplier_errors(np.diag([0.2, 0.1]), [0.02, 0.03], [True, False], beta=0.2, damping=1.0)
    np.testing.assert_allclose(errors, [0.02, 0.0])
