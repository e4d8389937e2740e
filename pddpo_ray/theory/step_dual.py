"""The multiplier of a limit inside a trainer that takes a step at a time and never solves a round.

    s      scale of the measure: sqrt(d (1 - d)) of a rate, the answers' standard deviation of a mean (slow average)
    e      (mean of the step's answers - d) / s, kept inside +-2
    I      I + gain / horizon * e       inside [0, upper]; held where it could only wind up
    lambda I + gain * e                 inside [0, upper]

Two time scales: the proportional part answers within a step, the integral within `horizon` steps. A policy-gradient
step of normalised advantages moves the measure about as fast as lambda is off its balance, so that the measure is an
integral of lambda: an integral part alone (dual ascent, the rules of whole rounds) then swings for ever, and the
proportional part is what damps it. While the integral stays inside its box, the mean of e over some steps is
(I_end - I_begin) horizon / (gain steps), which falls to 0: the measure's mean ends on the limit, whatever the gain.

lambda weighs the cost per standard deviation within a group against the reward per standard deviation within a group
(GRPO's `normalize_then_sum`), so that one gain serves every unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

GAIN = 4.0
HORIZON = 40
"""Steps of the integral. Chosen on a toy policy (tests/unit/math/test_step_dual.py), on no seed that its tests use."""
SLOW = 0.98
"""Decay of the average of the standard deviation."""
FLOOR = 0.02
"""Least scale, in shares of the measure's range, where it is known."""
FARTHEST = 2.0


@dataclass(frozen=True)
class StepLimit:
    """What one multiplier holds: the expected cost of an answer at most `limit`."""

    name: str
    limit: float
    rate: bool
    """Whether the cost is a share in [0, 1]."""
    span: float | None = None
    """Range of one measurement; None: unknown."""
    upper: float = 20.0


@dataclass(frozen=True)
class StepState:
    """What is remembered of a limit between steps; plain numbers, so that a journal holds it exactly."""

    multiplier: float = 0.0
    integral: float = 0.0
    deviation: float = 0.0
    """Slow average of the standard deviation of its costs."""
    steps: int = 0


def scale_of(limit: StepLimit, state: StepState) -> float:
    """What an excess is divided by, in the measure's unit; above 0."""
    if limit.rate and 0.0 < limit.limit < 1.0:
        return math.sqrt(limit.limit * (1.0 - limit.limit))
    floor = FLOOR * limit.span if limit.span else 0.0
    return max(state.deviation, floor) or 1.0


def next_state(limit: StepLimit, state: StepState, mean: float, deviation: float, *, spread: bool = True) -> StepState:
    """One step. `mean` and `deviation` are of the costs of the step's answers; `spread` says whether in any group they
    differ: where none does, no gradient can follow a larger multiplier, and the integral is held.

    Raises ValueError where a number is not finite.
    """
    if not (math.isfinite(mean) and math.isfinite(deviation)):
        raise ValueError(f"{limit.name}: the mean cost of a step is not a finite number")
    share = max(1.0 - SLOW, 1.0 / (state.steps + 1))
    seen = replace(state, deviation=(1.0 - share) * state.deviation + share * deviation, steps=state.steps + 1)
    excess = min(max((mean - limit.limit) / scale_of(limit, seen), -FARTHEST), FARTHEST)
    unbounded = state.integral + GAIN * excess
    winds_up = (unbounded >= limit.upper or not spread) and excess > 0
    integral = state.integral if winds_up else state.integral + GAIN / HORIZON * excess
    integral = min(max(integral, 0.0), limit.upper)
    return replace(seen, integral=integral, multiplier=min(max(integral + GAIN * excess, 0.0), limit.upper))
