"""The dual of the constrained problem, estimated from answers of the reference alone (docs/methods.md).

    D(lambda)  = beta mean_x log mean_j exp(s_xj),    s_xj = (r_xj + lambda g_xj) / beta,   g = limit - cost
    D'(lambda) = mean_x sum_j softmax(s_x)_j g_xj     = E_{pi_lambda}[g]

D is convex with one unknown. Few answers dominate the softmax where beta is small: `sample_size` says how many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Price:
    """What the descent found. `slope` is D' there; `sample_size` the mean effective number of answers per prompt."""

    multiplier: float
    slope: float
    sample_size: float
    converged: bool
    """Whether the slope vanished, or pushes outwards at an end of the interval."""


def dual_value(rewards: Array, gains: Array, beta: float, multiplier: float, prior: Array | None = None) -> float:
    """D(multiplier). rewards, gains [X, n]; prior [X] (None: all prompts alike)."""
    scores = (rewards + multiplier * gains) / beta
    values = beta * (logsumexp(scores, axis=1) - np.log(scores.shape[1]))
    return float(np.average(values, weights=prior))


def dual_slope(rewards: Array, gains: Array, beta: float, multiplier: float, prior: Array | None = None) -> float:
    """D'(multiplier): the expected gain of the policy that the multiplier stands for."""
    weights = softmax((rewards + multiplier * gains) / beta, axis=1)
    return float(np.average(np.sum(weights * gains, axis=1), weights=prior))


def descend(
    rewards: Array,
    gains: Array,
    beta: float,
    *,
    first: float = 1.0,
    rate: float = 1.0,
    upper: float = np.inf,
    prior: Array | None = None,
    restarts: int = 10,
    steps: int = 1000,
    tolerance: float = 1e-6,
) -> Price:
    """Projected gradient descent on D over [0, upper]; where it does not settle, again with half the rate.

    Without `upper` a limit that no sampled answer meets has no finite minimiser; then `converged` is False.
    """
    multiplier, settled = first, False
    for attempt in range(restarts + 1):
        multiplier, settled = _descent(
            rewards, gains, beta, first, rate / 2**attempt, upper, prior, steps=steps, tolerance=tolerance
        )
        if settled:
            break
    weights = softmax((rewards + multiplier * gains) / beta, axis=1)
    sample_size = float(np.average(1.0 / np.sum(weights**2, axis=1), weights=prior))
    return Price(multiplier, dual_slope(rewards, gains, beta, multiplier, prior), sample_size, settled)


def _descent(
    rewards: Array,
    gains: Array,
    beta: float,
    first: float,
    rate: float,
    upper: float,
    prior: Array | None,
    *,
    steps: int,
    tolerance: float,
) -> tuple[float, bool]:
    multiplier = first
    for _ in range(steps):
        slope = dual_slope(rewards, gains, beta, multiplier, prior)
        following = min(max(multiplier - rate * slope, 0.0), upper)
        # measured with rate 1: a small rate alone must not look like convergence
        if abs(min(max(multiplier - slope, 0.0), upper) - multiplier) <= tolerance:
            return multiplier, True
        multiplier = following
    return multiplier, False
