"""Elliptical bonuses: how wrong a score may still be, in Bradley-Terry logit units.

`elliptical` is the default (k posterior standard deviations); `theory_amplitude` and `theory_precision` give the
paper's own constants, which are a correctness test and never a default: with a practical number of labels that bonus
is the same for every answer, and a constant bonus explores nothing (paper.md §18, the experiments).
"""

from __future__ import annotations

import math

import numpy as np

from pddpo_ray.exploration.design import factor
from pddpo_ray.records import Array


def elliptical(matrix: Array, centred: Array, k: float) -> Array:
    """b = k ||L^-1 phi_c|| with L L^T = Lambda. Lambda [..., q, q], centred features [..., n, q] -> [..., n].

    b lies in (0, k s0 ||phi_c||] and never grows when data are added.
    """
    return k * np.linalg.norm(np.linalg.solve(factor(matrix), np.swapaxes(centred, -1, -2)), axis=-2)


def elliptical_from_inverse(inverse_matrix: Array, centred: Array, k: float) -> Array:
    """The same from Lambda^-1 [q, q], for picks inside a batch. [n, q] -> [n]"""
    return np.asarray(k * np.sqrt(np.maximum(np.sum((centred @ inverse_matrix) * centred, axis=-1), 0.0)))


def saturation(bonuses: Array, centred: Array, *, k: float, s0: float) -> float:
    """Share of answers whose bonus is still that of an empty design (within 1 %). [n], [n, q] -> []"""
    prior = k * s0 * np.linalg.norm(centred, axis=-1)
    return float(np.mean(bonuses >= 0.99 * prior))


def theory_amplitude(
    *, score_max: float, cells: int, rounds: int, pairs_per_round: int, gamma: float, delta: float
) -> float:
    """Factor of the paper's bonus before the feature norm: 4 sqrt(zeta^2 (|X||Y| + log(2K/delta')) + N gamma z^2).

    zeta = e^z + e^-z + 2, delta' = delta / 4, as printed but for erratum 3 of paper.md; its errata 4 and 5 name the
    constants of a valid radius.
    """
    zeta = math.exp(score_max) + math.exp(-score_max) + 2.0
    confidence = cells + math.log(2.0 * rounds / (delta / 4.0))
    return 4.0 * math.sqrt(zeta**2 * confidence + pairs_per_round * gamma * score_max**2)


def theory_precision(gram: Array, *, pairs_per_round: int, gamma: float) -> Array:
    """Sigma_k + N gamma I, the matrix of the paper's feature norm. sum v v^T [..., q, q] -> [..., q, q]"""
    return gram + pairs_per_round * gamma * np.eye(gram.shape[-1])
