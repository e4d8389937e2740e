"""Formulas that only verification needs: the paper's own constants, its printed margin, and a scale that is valid.

The paper's constants are a correctness test and never a default: with a practical number of labels that bonus is the
same for every answer, and a constant bonus explores nothing (paper.md §18, the experiments).
"""

from __future__ import annotations

import math

import numpy as np

from pddpo_lab.margins import Bonus
from pddpo_lab.mle import RIDGE
from pddpo_ray.exploration.design import FISHER_WEIGHT
from pddpo_ray.records import Array


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


def printed_margin(chosen: Bonus, rejected: Bonus, *, multiplier: float | Bonus) -> Bonus:
    """The cost stage's margin as the paper prints it (paper.md erratum 1), which `pddpo verify` compares with.

    Sign and scale are wrong: the log ratio answers a bonus with slope -1/beta, so uncertain answers are avoided.
    """
    return (chosen - rejected) / multiplier


def one_hot_gram(wins: Array) -> Array:
    """Sum of v v^T over pairs for one-hot features: the Laplacian of the comparison counts. [..., Y, Y] -> same"""
    counts = wins + np.swapaxes(wins, -1, -2)
    degrees = counts.sum(axis=-1)
    return degrees[..., :, None] * np.eye(wins.shape[-1]) - counts
