"""What is reachable among sampled answers, by hand, by enumeration, and with noisy labels."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.theory.estimates.prompt_sets import prompt_sets
from pddpo_ray.theory.multipliers.feasibility import largest_margin, reach

ORACLE = json.loads((Path(__file__).parents[2] / "data" / "limits.json").read_text())


def test_two_limits_that_fight_by_hand() -> None:
    """One prompt, two answers with excesses (-.2, .3) and (.4, -.1): alone both can be kept, together neither.

    A mixture p of the first: max(-.2 p + .4 (1-p), .3 p - .1 (1-p)) is least where .4 - .6 p = .4 p - .1: at p = .5.
    """
    excess = np.array([[[-0.2, 0.4]], [[0.3, -0.1]]])
    found = reach(excess, np.ones(1))
    np.testing.assert_allclose(found.lowest, [-0.2, -0.1])
    assert found.margin == pytest.approx(-0.1)
    assert not found.jointly
    np.testing.assert_allclose(found.together, [0.1, 0.1])
    np.testing.assert_allclose(found.broken, [0.0, 0.0])


def test_the_share_of_prompts_that_no_answer_keeps() -> None:
    """Three prompts with weights .5, .3, .2; the best answers have -.1, .2 and 0 (which keeps the limit)."""
    excess = np.array([[[-0.1, 0.5], [0.2, 0.3], [0.4, 0.0]]])
    found = reach(excess, np.array([0.5, 0.3, 0.2]))
    np.testing.assert_allclose(found.broken, [0.3])
    assert found.lowest[0] == pytest.approx(-0.05 + 0.06)
    assert found.margin == pytest.approx(-0.01)


def test_a_limit_on_a_set_counts_its_prompts_alone() -> None:
    sets = prompt_sets({"a": [0, 1], "b": [2]}, {"a": 0.75, "b": 0.25})
    excess = np.array([[[9.0], [9.0], [-0.2]]])
    found = reach(excess, sets.weights, factors=sets.factor("b")[None])
    assert found.lowest[0] == pytest.approx(-0.2)
    assert found.margin == pytest.approx(0.2)
    assert found.broken[0] == 0.0


def test_margins_are_shares_of_the_measures_range() -> None:
    excess = np.array([[[-20.0, 4.0]], [[0.1, -0.3]]])
    found = reach(excess, np.ones(1), scales=[100.0, 1.0])
    best = max(min(-(p * -0.2 + (1 - p) * 0.04), -(p * 0.1 + (1 - p) * -0.3)) for p in np.linspace(0.0, 1.0, 10001))
    assert found.margin == pytest.approx(best, abs=1e-4)


def test_answers_that_are_not_there_are_never_chosen() -> None:
    excess, there = np.array([[[-5.0, -1.0], [-2.0, 0.0]]]), np.array([[False, True], [True, True]])
    found = reach(excess, np.array([0.5, 0.5]), answers=there)
    assert found.lowest[0] == pytest.approx(-1.5)
    margin, policy = largest_margin(excess, np.array([0.5, 0.5]), there)
    assert margin == pytest.approx(1.5)
    np.testing.assert_allclose(policy, [[0.0, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize("seed", range(5))
def test_the_joint_margin_against_all_mixtures_of_two_deterministic_choices(seed: int) -> None:
    """With two limits an optimal policy mixes at most two deterministic ones; all of them are tried."""
    generator = np.random.default_rng(seed)
    excess, weights = generator.normal(size=(2, 3, 3)), generator.dirichlet(np.ones(3))
    points = np.array(
        [[weights @ excess[i, range(3), choice] for i in range(2)] for choice in product(range(3), repeat=3)]
    )
    shares = np.linspace(0.0, 1.0, 2001)[:, None]
    best = max(float(np.min(-(shares * a + (1 - shares) * b), axis=1).max()) for a in points for b in points)
    assert reach(excess, weights).margin == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize("world", ORACLE, ids=lambda world: world["kind"])
def test_the_limits_of_the_oracle_worlds_can_be_kept(world: dict) -> None:
    sets = prompt_sets(
        {n: s["prompts"] for n, s in world["prompt_sets"].items()},
        {n: s["share"] for n, s in world["prompt_sets"].items()},
    )
    signs = [-1.0 if "at_least" in limit else 1.0 for limit in world["limits"]]
    excess = np.array(
        [
            sign * (np.array(limit["measure"]) - limit.get("at_most", limit.get("at_least")))
            for sign, limit in zip(signs, world["limits"], strict=True)
        ]
    )
    factors = np.array([sets.factor(limit["over"]) for limit in world["limits"]])
    found = reach(excess, sets.weights, factors=factors)
    assert found.jointly
    assert (found.lowest <= -found.margin + 1e-9).all()


def test_one_half_of_the_labels_chooses_and_the_other_measures() -> None:
    """All answers have a rate of .3. Choosing by the same labels claims far less; the split is unbiased."""
    labels = np.random.default_rng(0).random((3000, 8, 4)) < 0.3
    chooses, measures = (labels[None, ..., side::2].mean(axis=-1) for side in (0, 1))
    weights = np.full(3000, 1 / 3000)
    naive = reach(chooses - 0.1, weights).lowest[0] + 0.1
    split = reach(chooses - 0.1, weights, measured=measures - 0.1).lowest[0] + 0.1
    assert naive < 0.05
    assert split == pytest.approx(0.3, abs=4 * np.sqrt(0.3 * 0.7 / 2 / 3000))
