"""One score out of a reward and costs, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pddpo_ray.theory.multipliers.step_scores import numbers, step_scores, within_groups


def test_deviations_are_counted_in_spreads_of_the_batch() -> None:
    """Rewards deviate by 1, -1, 3, -3, of mean square 5; costs by 2, -2, 0, 0, of mean square 2."""
    scores = step_scores([3.0, 1.0, 7.0, 1.0], {"words": [4.0, 0.0, 9.0, 9.0]}, {"words": 0.5}, ["a", "a", "b", "b"])
    lead, dear = 1 / math.sqrt(5), 0.5 * 2 / math.sqrt(2)
    assert scores.tolist() == pytest.approx([lead - dear, dear - lead, 3 * lead, -3 * lead])


def test_units_and_the_groups_level_change_nothing() -> None:
    groups = ["a", "b", "a", "b"]
    rewards, costs, weights = [1.0, 2.0, 4.0, 3.0], [0.0, 1.0, 1.0, 1.0], {"rate": 2.0}
    scores = step_scores(rewards, {"rate": costs}, weights, groups)
    others = [5 + 10 * reward + (100 if group == "a" else 0) for reward, group in zip(rewards, groups, strict=True)]
    other = step_scores(others, {"rate": [7 * cost for cost in costs]}, weights, groups)
    assert other.tolist() == pytest.approx(scores.tolist())


def test_what_has_no_number_or_no_spread_adds_nothing() -> None:
    costs: dict[str, list[float | None]] = {"lost": [None, None], "even": [0.1, 0.1], "half": [None, 5.0]}
    scores = step_scores([2.0, 0.0], costs, {"lost": 3.0, "even": 3.0, "half": 3.0}, ["a", "a"])
    assert scores.tolist() == [1.0, -1.0]
    assert step_scores([None, 1.0], {}, {}, ["a", "a"]).tolist() == [0.0, 0.0]


def test_whole_numbers_are_doubles_and_what_rounding_leaves_of_equal_values_is_no_spread() -> None:
    """3e8 and (0.1 + 0.2) 1e9 differ by 6e-8, the last place of a double of that size."""
    assert numbers([1, 2]).dtype == np.float64
    same = np.array([0.3e9, (0.1 + 0.2) * 1e9])
    assert same[0] != same[1]
    assert within_groups(same, ["a", "a"]).tolist() == [0.0, 0.0]
