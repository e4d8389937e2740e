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

VALUE_RIDGE = 4.0
"""A normal prior's ridge for squared losses, in ridges of the same prior for logistic ones: one label's variance is at
most 1/4, and a share changes by at most 1/4 per logit, so (1/4) / (1/4)^2."""
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


def centred_losses(log_ratios: Numbers, costs: Numbers, *, temperature: float) -> Numbers:
    """The same for several answers of one prompt: costs sum_i lambda_i C_i / s against their mean. [n], [n] -> [n]

    Their sum times n is the sum of `value_losses` over all n (n - 1) / 2 pairs of the answers.
    """
    rest = costs + temperature * log_ratios
    return (rest - rest.mean()) ** 2


def least_squares(rows: Array, targets: Array, *, weights: Array, ridge: float) -> Array:
    """argmin over w of sum weight (row . w - target)^2 + ridge |w|^2. [n, p], [n], [n] -> [p]"""
    weighed = rows * weights[:, None]
    gram = rows.T @ weighed + ridge * np.eye(rows.shape[1])
    return np.asarray(np.linalg.solve(gram, weighed.T @ targets))


def table_scores(
    prompts: Sequence[int],
    first: Sequence[int],
    second: Sequence[int],
    targets: ArrayLike,
    *,
    shape: tuple[int, int],
    weights: ArrayLike | None = None,
    ridge: float = 0.0,
) -> Array:
    """Minimiser of the pairs' squared losses over all tables: sum_i lambda_i C_i / s, up to a constant. -> [X, Y]

    The policy is base * exp(-score / temperature). Each prompt is a least-squares problem on the graph of its pairs;
    of its solutions the one of smallest norm is taken, so that answers in no pair, and prompts without pairs, stay as
    they were. `ridge` counts as that number of pairs of every answer with a score of 0.
    """
    scores = np.zeros(shape)
    x, a, b = (np.asarray(column, dtype=np.int64) for column in (prompts, first, second))
    t = np.asarray(targets, dtype=np.float64)
    w = np.ones(len(t)) if weights is None else np.asarray(weights, dtype=np.float64)
    for prompt in np.unique(x):
        rows = x == prompt
        matrix, right = np.zeros((shape[1], shape[1])), np.zeros(shape[1])
        for one, sign in ((a[rows], 1.0), (b[rows], -1.0)):
            np.add.at(matrix, (one, one), w[rows])
            np.add.at(right, one, sign * w[rows] * t[rows])
        np.add.at(matrix, (a[rows], b[rows]), -w[rows])
        np.add.at(matrix, (b[rows], a[rows]), -w[rows])
        # of an answer that is paired with itself nothing is left, and rcond finds the graph's components exactly
        matrix += ridge * np.eye(shape[1])
        scores[prompt] = np.linalg.lstsq(matrix, right, rcond=1e-10)[0]
    return scores


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
    for one in measured:
        factor = factors[one.prompt]
        if np.isfinite(one.costs[(factor > 0) & (multipliers > 0)]).all():
            groups.setdefault(one.prompt, {}).setdefault(one.answer, []).append(one)
    rows: list[PairRow] = []
    margins: list[float] = []
    for prompt, answers in groups.items():
        factor = factors[prompt]
        acting = (factor > 0) & (multipliers > 0)
        means = [np.mean([np.where(acting, one.costs, 0.0) for one in same], axis=0) for same in answers.values()]
        listed, total = list(answers.items()), sum(map(len, answers.values()))
        chosen_pairs, share = _drawn_pairs(len(listed), partners, prompt)
        for a, b in chosen_pairs:
            (chosen, first), (rejected, second) = listed[a], listed[b]
            newest = max(one.round for one in (*first, *second))
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
