"""Learning limits from measured values: a regression on differences, one stage for all limits together.

With h(y) = log policy(y|x) - log base(y|x), base the policy that enters the stage, and two answers y, y' of one prompt
whose costs C_i (i = 1..I) were measured:

    u = beta / s * (h(y') - h(y))        t = sum_i lambda_i (C_i(y) - C_i(y')) / s        loss = (u - t)^2
    s = sum_i lambda_i * range of C_i, one number per fit, so that |t| <= 1

Noise of labels with E[v | y] = C(y) changes no minimiser: over all policies it is base * exp(-sum_i lambda_i C_i /
beta), whatever distribution with full support the answers come from. Pairs must be chosen without a look at the values.
The reward stage from values has the same form with cost -reward and multiplier 1. The paper's theorem is about
comparisons and does not cover this regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pddpo_ray.records import Array, PairRow
from pddpo_ray.theory.estimates.cost_estimate import Factors, MeasuredAnswer, Tokens
from pddpo_ray.theory.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

PARTNERS = 32
"""Other answers to its prompt that a measured answer is compared with at most: all pairs of n would be n^2 / 2."""
Numbers = TypeVar("Numbers", NDArray[np.float64], "Tensor")


def value_scale(multipliers: ArrayLike, ranges: ArrayLike) -> float:
    """s = sum_i lambda_i * (largest range of C_i within a prompt). [I], [I] -> in units of the reward"""
    return float(np.dot(np.asarray(multipliers, dtype=np.float64), np.asarray(ranges, dtype=np.float64)))


def value_targets(multipliers: ArrayLike, first: ArrayLike, second: ArrayLike, scale: float) -> Array:
    """t of pairs from the costs of their answers. [I], [B, I], [B, I] -> [B], in [-1, 1] for costs in their ranges"""
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    return np.asarray(difference @ np.asarray(multipliers, dtype=np.float64) / scale)


def value_losses(
    log_ratio_first: Numbers, log_ratio_second: Numbers, targets: Numbers, *, temperature: float
) -> Numbers:
    """(u - t)^2 of pairs, u = temperature * (h(second) - h(first)), temperature = beta / s. [B], [B], [B] -> [B]"""
    return (temperature * (log_ratio_second - log_ratio_first) - targets) ** 2


def value_pairs(
    measured: Sequence[MeasuredAnswer], multipliers: Array, factors: Factors, scale: float, *, partners: int = PARTNERS
) -> tuple[list[PairRow], list[float]]:
    """Pairs of different answers to one prompt, and their margins sum_i lambda_i (C_i(chosen) - C_i(rejected)) / s.

    Equal answers are one answer with the mean of their costs. A pair of answers that were measured n and m times weighs
    n m / (all of the prompt's measurements), so that least squares over a table ends at those means. `factors` are
    P_s / P_0 by prompt [I]. Answers without a number under a limit that acts on their prompt make no pair.

    Of a prompt with many answers each is paired with about `partners` others, drawn evenly; a pair then weighs more by
    as much as fewer were drawn, so that the loss is that of all pairs on average.
    """
    groups: dict[Tokens, dict[Tokens, list[MeasuredAnswer]]] = {}
    for answer in measured:
        factor = factors[answer.prompt]
        if np.isfinite(answer.costs[(factor > 0) & (multipliers > 0)]).all():
            groups.setdefault(answer.prompt, {}).setdefault(answer.answer, []).append(answer)
    rows: list[PairRow] = []
    margins: list[float] = []
    for prompt, answers in groups.items():
        factor = factors[prompt]
        acting = (factor > 0) & (multipliers > 0)
        means = [np.mean([np.where(acting, answer.costs, 0.0) for answer in pool], axis=0) for pool in answers.values()]
        listed, total = list(answers.items()), sum(map(len, answers.values()))
        chosen_pairs, share = _drawn_pairs(len(listed), partners, prompt)
        for a, b in chosen_pairs:
            (chosen, first), (rejected, second) = listed[a], listed[b]
            newest = max(answer.round for answer in (*first, *second))
            weight = len(first) * len(second) / total / share
            rows.append(PairRow(f"values-{len(rows)}", prompt, chosen, rejected, newest, weight))
            target = 0.0 if scale == 0 else value_targets(multipliers * factor, means[a], means[b], scale)
            margins.append(float(target))
    return rows, margins


def _drawn_pairs(count: int, partners: int, prompt: Tokens) -> tuple[list[tuple[int, int]], float]:
    """Pairs of `count` answers and their share of all: each answer with those beside it on a circle drawn by seed."""
    reach = partners // 2
    if count - 1 <= 2 * reach:
        return list(combinations(range(count), 2)), 1.0
    circle = generator("value pairs", *prompt, count).permutation(count).tolist()
    pairs = [
        (min(a, b), max(a, b))
        for step in range(1, reach + 1)
        for a, b in zip(circle, circle[step:] + circle[:step], strict=True)
    ]
    return pairs, 2.0 * reach / (count - 1)
