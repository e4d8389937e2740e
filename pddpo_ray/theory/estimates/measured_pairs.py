"""From measured answers to the pairs that learners read, with differences of their costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from pddpo_ray.records import Array, PairRow
from pddpo_ray.theory.estimates.cost_estimate import Factors, MeasuredAnswer, Tokens
from pddpo_ray.theory.losses.value_stage import value_targets
from pddpo_ray.theory.seeds import generator

PARTNERS = 32
"""Other answers to its prompt that a measured answer is compared with at most: all pairs of n would be n^2 / 2."""


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
