"""Scores as probabilities: the temperature and the zero that fit labels best, and how far predicted shares are off.

    P(first preferred) = sigmoid(a (s1 - s2))        P(unsafe) = sigmoid(a s + b)

a is one over the temperature; b moves the zero of a cost to where safe and unsafe are equally likely (Platt 1999).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from pddpo_ray.records import Array

LARGEST = 50.0
"""Bound of a and b for scores of unit spread: labels without an error would ask for an infinite a."""


def temperature(differences: Array) -> float:
    """a >= 0 that makes pairs most likely, from their differences, preferred less other answer. [n] -> []

    0 where the scores are uninformative or rank pairs wrongly.
    """
    return float(_fit_weights(np.asarray(differences, dtype=np.float64)[:, None], np.ones(len(differences)))[0])


def zero_and_temperature(scores: Array, unsafe: Array) -> tuple[float, float]:
    """(a, b) with the largest likelihood of the labels; a >= 0. [n], [n] of 0 or 1"""
    values = np.asarray(scores, dtype=np.float64)
    a, b = _fit_weights(np.stack([values, np.ones(len(values))], axis=1), np.asarray(unsafe, dtype=np.float64))
    return float(a), float(b)


def _fit_weights(columns: Array, labels: Array) -> Array:
    """Weights of the columns in sigmoid(columns @ w), the first at least 0. [n, k], [n] -> [k]"""
    scale = max(float(columns[:, 0].std()), float(np.abs(columns[:, 0]).mean()), 1e-12)
    scaled = columns / np.array([scale, *np.ones(columns.shape[1] - 1)])

    def loss(weights: Array) -> tuple[float, Array]:
        logits = scaled @ weights
        gradient = scaled.T @ (expit(logits) - labels) / len(labels)
        return float(np.mean(np.logaddexp(0.0, logits) - labels * logits)), gradient

    bounds = [(0.0, LARGEST)] + [(-LARGEST, LARGEST)] * (columns.shape[1] - 1)
    start = np.array([1.0] + [0.0] * (columns.shape[1] - 1))
    weights: Array = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return weights / np.array([scale, *np.ones(columns.shape[1] - 1)])


@dataclass(frozen=True)
class Reliability:
    """Predicted and observed shares by bin of the prediction. A bin without predictions has no shares."""

    counts: tuple[int, ...]
    predicted: tuple[float | None, ...]
    observed: tuple[float | None, ...]
    error: float
    """Expected calibration error: sum over bins of their share times |predicted - observed|."""
    error_if_calibrated: float
    """95 % quantile of that error where every prediction is exactly right, at this many labels (simulated)."""


def reliability(chances: Array, happened: Array, bins: int = 10, seed: int = 0, draws: int = 2000) -> Reliability:
    """Of predicted chances in [0, 1] and what happened (0, 1, or 1/2 for a tie). [n], [n], n >= 1"""
    chances, happened = (np.asarray(values, dtype=np.float64) for values in (chances, happened))
    bin_indices = np.minimum((chances * bins).astype(int), bins - 1)
    counts = np.bincount(bin_indices, minlength=bins)
    predicted = np.bincount(bin_indices, chances, minlength=bins)

    def error(outcomes: Array) -> float:
        return float(np.abs(np.bincount(bin_indices, outcomes, minlength=bins) - predicted).sum() / len(chances))

    rng = np.random.default_rng([seed, len(chances), 13])
    simulated = [error((rng.random(len(chances)) < chances).astype(np.float64)) for _ in range(draws)]
    shares = [
        tuple(float(total / count) if count else None for total, count in zip(totals, counts, strict=True))
        for totals in (predicted, np.bincount(bin_indices, happened, minlength=bins))
    ]
    return Reliability(
        tuple(counts.tolist()), shares[0], shares[1], error(happened), float(np.quantile(simulated, 0.95))
    )
