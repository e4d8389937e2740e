"""Means under every round's policy from the answers of all rounds, by importance weights.

Answer j was drawn from one of the policies pi_1 .. pi_K, n_i of n from the i-th. Its weight under policy k is

    w_kj = pi_k(y_j | x_j) / sum_i (n_i / n) pi_i(y_j | x_j)        (the balance heuristic, Veach and Guibas 1995)

at most n / n_k, since pi_k is part of the sum: the mean sum_j w_kj v_j / sum_j w_kj is little worse than that of the
policy's own answers alone, and far better where policies are close to each other. It uses values that later
policies learned from, so it may choose a policy but not certify one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from pddpo_ray.records import Array


def pooled_weights(log_probs: Array, author: ArrayLike) -> Array:
    """log_probs [K, n] of every answer under every policy, author [n] which of them drew it -> w [K, n]"""
    counts = np.bincount(np.asarray(author), minlength=len(log_probs))
    has_answers = counts > 0
    log_mixture = logsumexp(log_probs[has_answers], axis=0, b=(counts[has_answers] / counts.sum())[:, None])
    return np.asarray(np.exp(log_probs - log_mixture))


def pooled_means(weights: Array, values: Array) -> Array:
    """Weighted means of values [n], or [K, n] where they differ by policy; nan: not measured, left out. -> [K]

    nan for a policy under which nothing measured has any weight.
    """
    has_value = np.isfinite(values)
    shares = np.where(has_value, weights, 0.0)
    total = shares.sum(axis=1)
    sums = (shares * np.where(has_value, values, 0.0)).sum(axis=1)
    return np.divide(sums, total, out=np.full(len(weights), np.nan), where=total > 0)
