"""One number per answer out of its reward and costs, where a trainer asks answer by answer and no group is there.

    score = (r - m_r) / s_r - sum over limits of lambda_i (c_i - m_i) / s_i
    m      slow average of the means of the steps before
    s      square root of the slow average of the mean square distance from a group's mean, of the steps before

m, s and lambda stand still while a step's answers come in, so that within a group a score differs by reward and costs
alone, as in `step_scores`; there the spread is the batch's own, here it is the one that the steps before had.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pddpo_ray.records import Array
from pddpo_ray.theory.multipliers.dual import SLOW
from pddpo_ray.theory.multipliers.step_scores import compared_groups, numbers, within_groups


@dataclass(frozen=True)
class Running:
    """Level and spread of one number over the steps so far; plain numbers, so that a file holds them exactly."""

    mean: float = 0.0
    square: float = 0.0
    """Mean square distance from a group's mean; 0: no spread was ever seen."""
    steps: int = 0


def next_running(running: Running, values: Sequence[float | None], groups: Sequence[Hashable]) -> Running:
    """After a step with these values. Without a number nothing changes. [n], [n]"""
    known = numbers(values)
    some = np.isfinite(known)
    if not some.any():
        return running
    known, measured = known[some], [group for group, here in zip(groups, some, strict=True) if here]
    deviations = within_groups(known, compared_groups(measured))
    share = max(1.0 - SLOW, 1.0 / (running.steps + 1))
    return Running(
        mean=(1.0 - share) * running.mean + share * float(known.mean()),
        square=(1.0 - share) * running.square + share * float(np.square(deviations).mean()),
        steps=running.steps + 1,
    )


def running_scores(
    rewards: Sequence[float | None],
    costs: Mapping[str, Sequence[float | None]],
    multipliers: Mapping[str, float],
    of_reward: Running,
    of_costs: Mapping[str, Running],
) -> Array:
    """Scores of answers, each without the others. What has no number is at its mean. Before a spread was seen a reward
    stands in its own unit, and a cost, whose unit could outweigh everything, adds nothing. [n] -> [n]

    `costs`, `multipliers` and `of_costs` are by limit. Raises KeyError for a multiplier whose limit has no cost.
    """
    scores = _distances(rewards, of_reward) / (math.sqrt(of_reward.square) or 1.0)
    for name, multiplier in multipliers.items():
        spread = math.sqrt(of_costs[name].square)
        if spread > 0.0:
            scores = scores - multiplier * _distances(costs[name], of_costs[name]) / spread
    return scores


def _distances(values: Sequence[float | None], running: Running) -> Array:
    """[n] -> [n]"""
    return np.nan_to_num(numbers(values) - running.mean)
