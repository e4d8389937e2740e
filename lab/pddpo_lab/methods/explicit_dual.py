"""The dual of the constrained problem, estimated from answers of the reference alone (docs/methods.md).

    D(lambda)  = beta mean_x log mean_j exp(s_xj),    s_xj = (r_xj + lambda g_xj) / beta,   g = limit - cost
    D'(lambda) = mean_x sum_j softmax(s_x)_j g_xj     = E_{pi_lambda}[g]

D is convex with one unknown. Few answers dominate the softmax where beta is small: `sample_size` says how many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

from pddpo_ray.records import Array


@dataclass(frozen=True)
class ExplicitDual:
    """The minimiser. `slope` is D' there; `sample_size` the mean effective number of answers per prompt."""

    multiplier: float
    slope: float
    sample_size: float


def dual_slope(rewards: Array, gains: Array, beta: float, multiplier: float, prior: Array | None = None) -> float:
    """D'(multiplier): the expected gain of the policy that the multiplier stands for."""
    weights = softmax((rewards + multiplier * gains) / beta, axis=1)
    return float(np.average(np.sum(weights * gains, axis=1), weights=prior))


def descend(rewards: Array, gains: Array, beta: float, *, upper: float, prior: Array | None = None) -> ExplicitDual:
    """Minimiser of D over [0, upper]: the root of its slope, or the end of the interval that the slope points to."""

    def slope(multiplier: float) -> float:
        return dual_slope(rewards, gains, beta, multiplier, prior)

    if slope(0.0) >= 0:
        multiplier = 0.0
    elif slope(upper) <= 0:
        multiplier = upper
    else:
        multiplier = float(brentq(slope, 0.0, upper, xtol=1e-12))
    weights = softmax((rewards + multiplier * gains) / beta, axis=1)
    sample_size = float(np.average(1.0 / np.sum(weights**2, axis=1), weights=prior))
    return ExplicitDual(multiplier, slope(multiplier), sample_size)
