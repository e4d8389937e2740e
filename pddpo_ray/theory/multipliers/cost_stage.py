"""What the multiplier makes of the cost stage: its temperature, its scales, whether it is trained (paper.md §3, §6)."""

from __future__ import annotations

import math

SKIP_SHARE = 0.1
"""Multipliers up to this share of beta are not trained for: see `skips_cost_stage`."""


def cost_temperature(beta: float, multiplier: float) -> float:
    """Temperature of the cost stage, beta / multiplier (paper.md §3).

    In the limit multiplier -> 0 it is infinite: no departure from the base is worth anything, and the stage's policy is
    its base (paper.md erratum 9). Raises ValueError below 0.
    """
    if multiplier < 0:
        raise ValueError(f"a multiplier is at least 0, got {multiplier}")
    return beta / multiplier if multiplier > 0 else math.inf


def cost_stage_scales(multiplier: float, *, reference_multiplier: float = 1.0) -> tuple[float, float]:
    """Factors (loss, learning rate) that keep the cost stage well scaled for any multiplier (paper.md §6).

    Multiplying the loss bounds its gradient in each log-probability by beta, as in the reward stage. Adam does not see
    that factor, and the log ratio to be learned shrinks with the multiplier, hence the second one.
    """
    return multiplier, min(1.0, multiplier / reference_multiplier)


def skips_cost_stage(multiplier: float, *, below: float) -> bool:
    """Whether the stage's policy is its base, without a fit (paper.md §6, erratum 9): at a multiplier up to `below`.

    At 0 that is the exact limit. Below SKIP_SHARE * beta, the default of `below`, the log ratio to be learned is
    smaller than what a trained policy gets wrong, so that training would only add noise.
    """
    return multiplier <= below
