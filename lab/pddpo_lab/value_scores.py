"""Exact minimisers of the regression on measured values (`theory.losses.value_stage`), and its form by answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from pddpo_ray.records import Array
from pddpo_ray.theory.losses.value_stage import Numbers

VALUE_RIDGE = 4.0
"""A normal prior's ridge for squared losses, in ridges of the same prior for logistic ones: one label's variance is at
most 1/4, and a share changes by at most 1/4 per logit, so (1/4) / (1/4)^2."""


def centred_losses(log_ratios: Numbers, costs: Numbers, *, temperature: float) -> Numbers:
    """`value_losses` for several answers of one prompt: costs sum_i lambda_i C_i / s less their mean. [n], [n] -> [n]

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
