"""Can the limits be kept? What is reachable by choosing among given answers, for each limit alone and for all together.

Excesses are costs minus limits, C_i(x, y) - d_i, tables [I, X, n] over prompts and their n answers. On a world's own
answers the result is exact. On answers of the reference it is a warning only: training reaches what no sample showed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog

from pddpo_ray.records import Array

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Reach:
    """What choosing among answers can reach. `margin` > 0: all limits can be kept by so much at once."""

    lowest: Array
    """Smallest excess of each limit alone; at most 0 where it can be kept. [I]"""
    margin: float
    """Largest m with excess_i <= -m * scale_i for all limits at once."""
    together: Array
    """Excess of each limit where that margin is reached. [I]"""
    broken: Array
    """Share of each limit's prompts of which no answer keeps it. [I]"""

    @property
    def jointly(self) -> bool:
        return self.margin >= 0.0


def reach(
    excess: Array,
    weights: Array,
    *,
    scales: ArrayLike | None = None,
    factors: Array | None = None,
    measured: Array | None = None,
    answers: Mask | None = None,
) -> Reach:
    """What is reachable on prompts with weights P_0.

    `scales` [I] are the ranges of the measures (None: 1). `factors` [I, X] are P_s(x) / P_0(x) where a limit is about
    a prompt set: its excess is then m - d in each prompt of the set, and the factor is applied here. `measured` is a
    second, independent measurement of the same answers: `excess` chooses, `measured` says what was reached, since the
    smallest of noisy numbers looks lower than it is. `answers` [X, n]: which of the n there are.
    """
    excess = np.asarray(excess, dtype=np.float64)
    there = np.ones(excess.shape[1:], dtype=bool) if answers is None else answers
    factors = np.ones(excess.shape[:2]) if factors is None else factors
    scales = np.ones(len(excess)) if scales is None else np.asarray(scales, dtype=np.float64)
    second = excess if measured is None else np.asarray(measured, dtype=np.float64)
    best = np.where(there, excess, np.inf).argmin(axis=2)
    chosen = np.take_along_axis(second, best[:, :, None], axis=2)[:, :, 0]
    shares = factors * weights
    margin, policy = largest_margin(factors[:, :, None] * excess / scales[:, None, None], weights, there)
    together = np.einsum("ix,xn,ixn->i", shares, policy, second)
    if measured is not None:
        margin = float(-np.max(together / scales))
    return Reach(
        np.sum(shares * chosen, axis=1), margin, together, np.sum(shares * (chosen > 0), axis=1) / shares.sum(axis=1)
    )


def split_labels(labels: Sequence[Sequence[float]]) -> tuple[Array, Array]:
    """Means of the even and of the odd labels of each answer: one half chooses, the other measures. [n], [n]

    Raises ValueError where an answer has a single label, which cannot be split.
    """
    if any(len(one) < 2 for one in labels):
        raise ValueError("an answer with one label cannot be split into two measurements; ask for two labels each")
    return np.array([np.mean(one[0::2]) for one in labels]), np.array([np.mean(one[1::2]) for one in labels])


def largest_margin(
    excess: Array, weights: Array, answers: Mask, *, tolerance: float = 1e-12, cuts: int = 2000
) -> tuple[float, Array]:
    """max over policies on `answers` of min_i -E[excess_i], and a policy that reaches it. [I, X, n] -> [], [X, n]

    By duality it is the minimum over weights of the limits of E_x max_y sum_i -w_i excess_i: a convex function of I - 1
    numbers, found by cutting planes. A cut is the best answer of each prompt under some weights, and the policy mixes
    those choices, so that a world with 100,000 answers a prompt is no large program.
    """
    prompts = np.arange(len(weights))
    hidden = np.where(answers, 0.0, -np.inf)
    chosen, gains = [], []
    limit_weights, best = np.full(len(excess), 1.0 / len(excess)), np.inf
    for _ in range(cuts):
        choice = np.argmax(hidden - np.tensordot(limit_weights, excess, 1), axis=1)
        gain = -np.array([weights @ one[prompts, choice] for one in excess])
        chosen.append(choice)
        gains.append(gain)
        best = min(best, float(limit_weights @ gain))
        limit_weights, margin, shares = _lowest_of_cuts(np.array(gains))
        if best - margin <= tolerance * max(1.0, abs(best)):
            break
    policy = np.zeros(answers.shape)
    for choice, share in zip(chosen, shares, strict=True):
        policy[prompts, choice] += share
    return margin, policy


def _lowest_of_cuts(gains: Array) -> tuple[Array, float, Array]:
    """Weights [I] that minimise the largest of gains @ weights, that value, and each cut's share in it [K]. [K, I]"""
    cuts, limits = gains.shape
    solution = linprog(
        [*np.zeros(limits), 1.0],
        A_ub=np.column_stack([gains, -np.ones(cuts)]),
        b_ub=np.zeros(cuts),
        A_eq=[[*np.ones(limits), 0.0]],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * limits + [(None, None)],
    )
    shares = np.maximum(-solution.ineqlin.marginals, 0.0)
    return np.asarray(solution.x[:-1]), float(solution.x[-1]), shares / shares.sum()
