"""How far expected costs have followed the multipliers, and the curvature of the dual that this shows.

Newton's step takes the curvature from the covariance of the costs: that of policies that are fitted exactly. A fit of a
few steps on a language model follows its multipliers a tenth as far, and the step is a tenth of what the limit needs.

Two measured policies show it. With s the difference of their multipliers and y that of their costs, the other way
round, the curvature between them has H s = y. The covariance's is scaled by s.y / s.H s and corrected by the update of
Broyden, Fletcher, Goldfarb and Shanno, which keeps it positive definite where s.y > 0. The first policy is the
reference: what the reward changed since then counts as the limits' doing until later differences put it right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pddpo_ray.records import Array

POINTS = 3
"""Measured policies that a curvature is taken from, the newest: older ones are of another fit."""
SIGNAL = 3.0
"""Standard errors by which costs must have moved along the multipliers' change: else it says nothing."""


@dataclass(frozen=True)
class MeasuredPolicy:
    """Multipliers and costs of one policy, per scale of each measure. [I] each"""

    multipliers: tuple[float, ...]
    costs: tuple[float, ...]
    errors: tuple[float, ...]
    """Standard errors of the costs."""


def seen_curvature(curvature: Array, policies: Sequence[MeasuredPolicy]) -> Array:
    """The curvature as the differences of these policies show it, oldest first; as it is where none of them is told
    from noise. [I, I] -> [I, I]"""
    told = [pair for pair in (_difference(*both) for both in pairwise(policies)) if pair is not None]
    if not told:
        return curvature
    step, change = told[-1]
    seen = curvature * (step @ change) / (step @ curvature @ step)
    for step, change in told:
        along = seen @ step
        seen = seen - np.outer(along, along) / (step @ along) + np.outer(change, change) / (step @ change)
    return np.asarray(seen)


def _difference(before: MeasuredPolicy, after: MeasuredPolicy) -> tuple[Array, Array] | None:
    """s and y; None where s.y is within the noise of the estimates."""
    step = np.subtract(after.multipliers, before.multipliers)
    change = np.subtract(before.costs, after.costs)
    noise = float(np.sqrt(step**2 @ (np.square(before.errors) + np.square(after.errors))))
    return (step, change) if step @ change > SIGNAL * noise else None
