"""The bonuses that ship, each made for a run (`config.explore` names these functions)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from pddpo_ray.exploration.alternatives import (
    EllipticalBonus,
    HeldBonus,
    NoBonus,
    Uncertainty,
)


@dataclass(frozen=True)
class BonusContext:
    """What a bonus is made for."""

    dimension: int
    """q of the features."""
    k: float
    """Bonus in posterior standard deviations."""
    s0: float
    """Prior standard deviation of a difference of scores."""
    weight: float
    """Fisher information of one comparison."""
    seed: int


def elliptical(settings: BaseModel | None, run: BonusContext) -> Uncertainty:
    return EllipticalBonus(run.dimension, k=run.k, s0=run.s0, weight=run.weight)


def theorem(settings: BaseModel | None, run: BonusContext) -> Uncertainty:
    return HeldBonus(run.dimension, k=run.k, s0=run.s0, weight=run.weight)


def none(settings: BaseModel | None, run: BonusContext) -> Uncertainty:
    return NoBonus()
