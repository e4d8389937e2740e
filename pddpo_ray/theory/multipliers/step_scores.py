"""One number per answer out of its reward and its costs, for trainers that take one reward and weigh nothing.

    score = (r - mean of its group) / s_r - sum over limits of lambda_i (c_i - mean of its group) / s_i
    s      square root of the mean square of those deviations, over the batch

The scale is the batch's, not the group's: in a pair every deviation would be one spread, and how much an answer
costs would be lost. Differences within a group are all that a policy gradient or a comparison takes from it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pddpo_ray.records import Array
from pddpo_ray.theory.multipliers.dual import SLOW


def step_scores(
    rewards: Sequence[float | None],
    costs: Mapping[str, Sequence[float | None]],
    multipliers: Mapping[str, float],
    groups: Sequence[Hashable],
) -> Array:
    """Scores of a batch. A missing number counts as its group's mean; without spread a term is 0. [n] -> [n]

    `costs` and `multipliers` are by limit. Callers give an answer that could not be measured the worst cost.
    """
    scores = _in_spreads(rewards, groups)
    for name, multiplier in multipliers.items():
        scores = scores - multiplier * _in_spreads(costs[name], groups)
    return scores


def numbers(values: Sequence[float | None]) -> Array:
    """NaN where there is no finite number. [n] -> [n]"""
    array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    array[~np.isfinite(array)] = np.nan
    return array


def compared_groups(groups: Sequence[Hashable]) -> list[Hashable]:
    """The groups of answers with numbers; where none has two, all are one group: of a trainer that draws one answer to
    a prompt. [n] -> [n]"""
    return list(groups) if len(set(groups)) < len(groups) else [0] * len(groups)


def within_groups(values: Array, groups: Sequence[Hashable]) -> Array:
    """Each value's distance from its group's mean, 0 where it is NaN. [n], [n] -> [n]"""
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    deviations = np.zeros(len(values))
    for indices in members.values():
        if np.isfinite(values[indices]).any():
            deviations[indices] = np.nan_to_num(values[indices] - np.nanmean(values[indices]))
    # rounding of equal values is not a spread
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    deviations[np.abs(deviations) <= 1e-12 * max(1.0, largest)] = 0.0
    return deviations


def _in_spreads(values: Sequence[float | None], groups: Sequence[Hashable]) -> Array:
    """Each value's distance from its group's mean, in spreads of the batch. [n], [n] -> [n]"""
    deviations = within_groups(numbers(values), groups)
    spread = float(np.sqrt(np.mean(np.square(deviations)))) if len(deviations) else 0.0
    return deviations / spread if spread > 0.0 else deviations


# --- where a trainer asks answer by answer and no group is whole -----------------------------------------------------
#
# score = (r - m_r) / s_r - sum over limits of lambda_i (c_i - m_i) / s_i
#     m      slow average of the means of the steps before
#     s      square root of the slow average of the mean square distance from a group's mean, of the steps before
#
# m, s and lambda stand still while a step's answers come in, so that within a group a score differs by reward and costs
# alone, as in `step_scores`; there the spread is the batch's own, here it is the one that the steps before had.


@dataclass(frozen=True)
class Running:
    """Level and spread of one number over the steps so far; plain numbers, so that a file holds them exactly."""

    mean: float = 0.0
    square: float = 0.0
    """Mean square distance from a group's mean; 0: no spread was ever seen."""
    steps: int = 0


def next_running(running: Running, values: Sequence[float | None], groups: Sequence[Hashable]) -> Running:
    """After a step with these values. Without a number nothing changes. [n], [n]"""
    array = numbers(values)
    mask = np.isfinite(array)
    if not mask.any():
        return running
    array, present = array[mask], [group for group, inside in zip(groups, mask, strict=True) if inside]
    deviations = within_groups(array, compared_groups(present))
    share = max(1.0 - SLOW, 1.0 / (running.steps + 1))
    return Running(
        mean=(1.0 - share) * running.mean + share * float(array.mean()),
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
