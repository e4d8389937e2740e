"""Elliptical bonuses: how wrong a score may still be, in Bradley-Terry logit units.

`elliptical` is k posterior standard deviations; `pddpo_lab.verify.formulas` has the paper's own constants.
"""

from __future__ import annotations

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
