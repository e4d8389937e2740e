"""Design matrices: how much is known about each direction of feature space.

    Lambda = I / s0^2 + w * sum of v v^T,   v = phi(x, y) - phi(x, y') of the compared answers

With w = 1/4, the largest Fisher information of a Bradley-Terry label, Lambda^-1 is the Laplace posterior covariance of
a linear score whose differences have prior standard deviation s0. All float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pddpo_ray.records import Array

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
        size = self.matrix.shape[-1]
        return float(np.sum(np.linalg.slogdet(self.matrix)[1]) + 2.0 * np.log(self.s0) * size * _copies(self.matrix))


def empty_design(dimension: int, *, s0: float, weight: float = FISHER_WEIGHT) -> Design:
    """Lambda without data, I / s0^2."""
    if s0 <= 0:
        raise ValueError(f"s0, the prior standard deviation of a score difference, must be above 0, got {s0}")
    return Design(np.eye(dimension) / s0**2, s0, weight)


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
    along = inverse_matrix @ row
    return inverse_matrix - np.outer(along, along) * (weight / (1.0 + weight * float(row @ along)))


def _copies(matrix: Array) -> int:
    return math.prod(matrix.shape[:-2])
