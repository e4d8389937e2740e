"""Elliptical bonuses: how wrong a score may still be, in Bradley-Terry logit units.

`elliptical` is the default (k posterior standard deviations); `theory_amplitude` and `theory_precision` give the
paper's own constants, which are a correctness test and never a default: with a practical number of labels that bonus
is the same for every answer, and a constant bonus explores nothing (paper.md §18, the experiments).
"""

from __future__ import annotations

import math

import numpy as np

from pddpo_ray.exploration.design import FISHER_WEIGHT, factor
from pddpo_ray.records import Array
from pddpo_ray.theory.mle import RIDGE


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


def valid_scale(
    *,
    score_max: float,
    prompts: int,
    answers: int,
    pairs: int,
    s0: float,
    weight: float = FISHER_WEIGHT,
    delta: float = 0.05,
) -> float:
    """k at which `elliptical` bounds the error of box maximum likelihood in a table: all answers, both streams and all
    rounds of at most `pairs` pairs at once, with probability 1 - delta, however the pairs were chosen (paper.md §16).

    Per prompt and stream, V = I / (w s0^2) + sum v v^T: the labels' noise has norm at most G in V^-1 by the bound for
    self-normalised martingales (sub-Gaussian with variance 1/4), a pair's information is at least kappa in the box, so
    ||error||_V <= 2 G / kappa + sqrt(ridge Y z^2 / kappa + 4 Y z^2 / (w s0^2)); k = sqrt(w) ||error||_V.
    """
    free, prior = answers - 1, 1.0 / (weight * s0**2)
    information = free * math.log1p(2.0 * pairs / (prior * free))
    noise = math.sqrt(0.5 * (0.5 * information + math.log(2.0 * prompts / delta)))
    kappa = 1.0 / (math.exp(2.0 * score_max) + math.exp(-2.0 * score_max) + 2.0)
    box = answers * score_max**2
    return math.sqrt(weight) * (2.0 * noise / kappa + math.sqrt(RIDGE * box / kappa + 4.0 * prior * box))
