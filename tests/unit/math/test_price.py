"""The price of a limit against the exact slope of f*, and its interval against simulated rounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.theory.estimates.prompt_sets import prompt_sets
from pddpo_ray.theory.multipliers.price import late_multiplier, price
from pddpo_ray.theory.multipliers.several_limits import LagrangianDual, minimise

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


def test_the_late_multiplier_is_that_of_the_last_half() -> None:
    """Rounds 3 to 6 of six: 1, 2, 3 have mean 2 and deviation 1."""
    assert late_multiplier([9.0, 9.0, 9.0, 1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert late_multiplier([0.5]) == (0.5, float("inf"))


@pytest.mark.slow
def test_the_interval_holds_the_optimum_of_noisy_rounds() -> None:
    """Newton's step with noisy excesses on a quadratic dual: 95 % of the intervals of 30 rounds hold lambda*."""
    generator = np.random.default_rng(0)
    hessian, error, optimum = 2.0, 0.05, 1.5
    multipliers = np.full(4000, 0.7)
    traces = []
    for _ in range(30):
        excess = hessian * (optimum - multipliers) + error * generator.normal(size=multipliers.shape)
        multipliers = multipliers + 0.5 * excess / hessian
        traces.append(multipliers)
    shown = [price(*late_multiplier(trace), 1.0) for trace in np.array(traces).T]
    assert np.mean([one.low <= optimum <= one.high for one in shown]) >= 0.95
