"""What a limit costs: its multiplier is the slope of the best helpfulness f* in the limit.

f* is concave in the limits, so a limit that is loosened by `change` gains at most multiplier * change, and nearly so
much for small changes. The interval is that of the multiplier as it moves in the late rounds; what the learner gets
wrong is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

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
    half = float(ndtri(0.5 + level / 2)) * standard_error
    ends = (max(multiplier - half, 0.0), max(multiplier, 0.0), multiplier + half)
    low, gain, high = (end * change for end in ends)
    return Price(change, gain, low, high)


def late_multiplier(trace: ArrayLike) -> tuple[float, float]:
    """Mean and standard deviation of a multiplier over the last half of its rounds. [K]

    The deviation is that of one round, not of the mean: neighbouring rounds are not independent, and a multiplier that
    still drifts has a wide one.
    """
    values = np.asarray(trace, dtype=np.float64)
    late = values[len(values) // 2 :]
    return float(late.mean()), float(late.std(ddof=1)) if len(late) > 1 else float("inf")
