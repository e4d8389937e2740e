"""Means under every round's policy from the answers of all rounds, by importance weights.

Answer j was drawn from one of the policies pi_1 .. pi_K, n_i of n from the i-th. Its weight under policy k is

    w_kj = pi_k(y_j | x_j) / sum_i (n_i / n) pi_i(y_j | x_j)        (the balance heuristic, Veach and Guibas 1995)

at most n / n_k, since pi_k is part of the sum: the mean sum_j w_kj v_j / sum_j w_kj is little worse than that of the
policy's own answers alone, and far better where policies are close to each other. It leans on values that the later
policies learned from, so it serves to choose; what certifies a policy is drawn anew.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from pddpo_ray.records import Array


def pooled_weights(log_probs: Array, author: ArrayLike) -> Array:
    """log_probs [K, n] of every answer under every policy, author [n] which of them drew it -> w [K, n]"""
    counts = np.bincount(np.asarray(author), minlength=len(log_probs))
    drew = counts > 0
    mixed = logsumexp(log_probs[drew], axis=0, b=(counts[drew] / counts.sum())[:, None])
    return np.asarray(np.exp(log_probs - mixed))


def pooled_means(weights: Array, values: Array) -> Array:
    """Weighted means of values [n], or [K, n] where they differ by policy; nan: not measured, left out. -> [K]

    nan for a policy under which nothing measured has any weight.
    """
    known = np.isfinite(values)
    shares = np.where(known, weights, 0.0)
    total = shares.sum(axis=1)
    sums = (shares * np.where(known, values, 0.0)).sum(axis=1)
    return np.divide(sums, total, out=np.full(len(weights), np.nan), where=total > 0)
