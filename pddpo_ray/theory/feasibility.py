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
from scipy.sparse import coo_array, csr_array, hstack

Array = NDArray[np.float64]
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


def largest_margin(excess: Array, weights: Array, answers: Mask) -> tuple[float, Array]:
    """max over policies on `answers` of min_i -E[excess_i], and a policy that reaches it. [I, X, n] -> [], [X, n]

    A linear program in the chances of the answers and the margin itself.
    """
    cells = np.argwhere(answers)
    count = len(cells)
    prompts, _ = cells.T
    costs = weights[prompts] * excess[:, prompts, cells[:, 1]]
    limits = hstack([csr_array(costs), csr_array(np.ones((len(excess), 1)))], format="csr")
    rows = coo_array((np.ones(count), (prompts, np.arange(count))), shape=(len(weights), count + 1)).tocsr()
    target = np.zeros(count + 1)
    target[-1] = -1.0
    solution = linprog(
        target,
        A_ub=limits,
        b_ub=np.zeros(len(excess)),
        A_eq=rows,
        b_eq=np.ones(len(weights)),
        bounds=[(0.0, 1.0)] * count + [(None, None)],
    )
    policy = np.zeros(answers.shape)
    policy[prompts, cells[:, 1]] = solution.x[:-1]
    return float(solution.x[-1]), policy
