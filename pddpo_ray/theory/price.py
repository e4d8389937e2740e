"""What a limit costs: its multiplier is the slope of the best helpfulness f* in the limit.

f* is concave in the limits, so a limit that is loosened by `change` gains at most multiplier * change, and nearly so
much for small changes. The interval is that of the multiplier: noise of the estimates that moved it, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from pddpo_ray.records import Array

STEEPEST = 0.25
"""Largest slope of the win rate sigmoid(reward difference) in the reward."""


@dataclass(frozen=True)
class Price:
    """Gain in helpfulness (units of the reward) from loosening a limit by `change`, with its interval."""

    change: float
    gain: float
    low: float
    high: float

    @property
    def win_points(self) -> float:
        """The gain as percentage points of wins against the policy of today, at most: sigmoid' is at most 1/4."""
        return 100.0 * STEEPEST * self.gain


def price(multiplier: float, standard_error: float, change: float, *, level: float = 0.95) -> Price:
    """Gain of a limit that is looser by `change` (in units of the measure, as a cost). A price is never below 0."""
    half = float(norm.ppf(0.5 + level / 2)) * standard_error
    ends = (max(multiplier - half, 0.0), max(multiplier, 0.0), multiplier + half)
    low, gain, high = (end * change for end in ends)
    return Price(change, gain, low, high)


def multiplier_errors(
    covariance: ArrayLike, standard_errors: ArrayLike, binding: ArrayLike, *, beta: float, damping: float
) -> Array:
    """Standard errors of multipliers that damped Newton holds near their optimum; 0 where a limit does not bind. [I]

    lambda_{k+1} = lambda_k + damping H^-1 (excess_k + noise) has the stationary covariance damping / (2 - damping)
    times H^-1 Noise H^-1, H = Cov / beta. covariance [I, I] as in the step, standard_errors [I] of one round's
    estimates, which are treated as independent of each other.
    """
    free = np.asarray(binding, dtype=bool)
    errors = np.zeros(len(free))
    if free.any():
        inverse = beta * np.linalg.inv(np.asarray(covariance, dtype=np.float64)[np.ix_(free, free)])
        noise = np.asarray(standard_errors, dtype=np.float64)[free] ** 2
        errors[free] = np.sqrt(damping / (2.0 - damping) * np.sum(inverse**2 * noise, axis=1))
    return errors
