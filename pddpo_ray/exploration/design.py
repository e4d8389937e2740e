"""Design matrices: how much is known about each direction of feature space.

    Lambda = I / s0^2 + w * sum of v v^T,   v = phi(x, y) - phi(x, y') of the compared answers

A Bradley-Terry label at difference m has Fisher information sigma'(m), at most 1/4. With w = 1/4 Lambda^-1 is therefore
a lower bound of the Laplace posterior covariance of a linear score whose differences have prior standard deviation s0,
and equal to it where all fitted differences are 0. `fitted_design` has the weights sigma'(m) themselves. All float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from pddpo_ray.records import Array
from pddpo_ray.theory.logistic import most_probable

FISHER_WEIGHT = 0.25


@dataclass(frozen=True, eq=False)
class Design:
    """Lambda [..., q, q] of one label stream and the number of pairs in it. Leading dimensions are independent."""

    matrix: Array
    s0: float
    weight: float = FISHER_WEIGHT
    pairs: int = 0

    def add(self, rows: Array) -> Design:
        """Lambda after more compared pairs, as differences [n, q].

        Row by row, so that the sum does not depend on how a journal's pairs are grouped into calls.
        """
        matrix = self.matrix.copy()
        for row in np.atleast_2d(rows):
            matrix += self.weight * np.outer(row, row)
        return replace(self, matrix=matrix, pairs=self.pairs + len(np.atleast_2d(rows)))

    def add_gram(self, gram: Array, pairs: int) -> Design:
        """Lambda after a shard's sum of v v^T [..., q, q]; sums of shards are associative up to rounding."""
        return replace(self, matrix=self.matrix + self.weight * gram, pairs=self.pairs + pairs)

    @property
    def log_determinant(self) -> float:
        """log det(Lambda) - log det(I / s0^2): information gathered so far, in nats; 0 without data."""
        size, copies = self.matrix.shape[-1], math.prod(self.matrix.shape[:-2])
        return float(np.sum(np.linalg.slogdet(self.matrix)[1]) + 2.0 * np.log(self.s0) * size * copies)


def empty_design(dimension: int, *, s0: float, weight: float = FISHER_WEIGHT) -> Design:
    """Lambda without data, I / s0^2."""
    if s0 <= 0:
        raise ValueError(f"s0, the prior standard deviation of a score difference, must be above 0, got {s0}")
    return Design(np.eye(dimension) / s0**2, s0, weight)


def fitted_design(rows: Array, signs: Array, *, s0: float) -> Design:
    """Lambda with w = sigma'(m_i) at the most probable linear scores: its inverse is the Laplace covariance itself.

    rows [n, q] are differences v, signs [n] are 1 where the first answer won, -1 where the other did, and 0 where no
    label says so yet: such a pair counts with 1/4.
    """
    mask = signs != 0
    scores = most_probable(rows[mask] * signs[mask, None], s0**-2)
    chance = expit(rows @ scores)
    weights = np.where(mask, chance * (1.0 - chance), FISHER_WEIGHT)
    return empty_design(rows.shape[1], s0=s0, weight=1.0).add_gram((rows * weights[:, None]).T @ rows, len(rows))


def factor(matrix: Array) -> Array:
    """Lower Cholesky factor of Lambda [..., q, q], with a jitter of 1e-9 trace/q where rounding spoilt it."""
    try:
        return np.asarray(np.linalg.cholesky(matrix))
    except np.linalg.LinAlgError:
        size = matrix.shape[-1]
        scale = np.trace(matrix, axis1=-2, axis2=-1)[..., None, None] / size
        return np.asarray(np.linalg.cholesky(matrix + 1e-9 * scale * np.eye(size)))


def inverse(matrix: Array) -> Array:
    """Lambda^-1 from its Cholesky factor. [..., q, q] -> [..., q, q]"""
    half = np.linalg.solve(factor(matrix), np.broadcast_to(np.eye(matrix.shape[-1]), matrix.shape))
    return np.asarray(np.swapaxes(half, -1, -2) @ half)


def sherman_morrison(inverse_matrix: Array, row: Array, weight: float = FISHER_WEIGHT) -> Array:
    """(Lambda + weight v v^T)^-1 from Lambda^-1. [q, q], [q] -> [q, q]

    For picks inside one batch, on a copy; the next batch factors Lambda anew, so no error accumulates.
    """
    product = inverse_matrix @ row
    return inverse_matrix - np.outer(product, product) * (weight / (1.0 + weight * float(row @ product)))
