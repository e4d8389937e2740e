"""Multipliers of limits inside another trainer before its first step: the states and rules of `theory.dual`.

The trainer weighs each cost by its multiplier's price: per standard deviation of the cost within its group, against the
reward per standard deviation of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pddpo_ray.config.sections.dual import (
    AnytimeRule,
    DualConfig,
    FixedRule,
    InstalledRule,
    NewtonRule,
    ProjectedRule,
    StepwiseRule,
)
from pddpo_ray.errors import UserError
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.parts.dual_rules import first_state
from pddpo_ray.theory.multipliers.dual import DualState, LimitState

STEPWISE = DualConfig(rule=StepwiseRule(), rho=10.0, first=0.0)
"""How a multiplier moves where its limit names no rule: from 0, inside [0, 20]."""


@dataclass(frozen=True)
class Schedule:
    """What the rules of multipliers must know of the trainer. The rule of limits that name none needs nothing."""

    steps: int | None = None
    """Steps of the whole training, for which `projected` and `newton` choose their steps."""
    beta: float | None = None
    """The trainer's weight of the KL divergence, for `newton` and the cap on the steps of `projected` and `anytime`."""
    warmup_steps: int = 0
    """Steps of the trainer in which no multiplier moves."""


NO_SCHEDULE = Schedule()
"""For limits whose rules need none."""


def first_multipliers(limits: Sequence[StatedLimit], schedule: Schedule) -> DualState:
    """Raises UserError for a limit's `dual` that is wrong, or that needs more of the schedule than there is."""
    return DualState(tuple(_first_multiplier(limit, len(limits), schedule) for limit in limits))


def _first_multiplier(limit: StatedLimit, count: int, schedule: Schedule) -> LimitState:
    where, settings = f"{limit.where}.dual", _settings(limit)
    rule, between = settings.rule, limit.limit.cost_range
    if between is None and not isinstance(rule, StepwiseRule | FixedRule):
        raise UserError(f"{where}: the rule {rule.kind} counts in ranges of the measure; state `bounds: [low, high]`")
    if schedule.steps is None and isinstance(rule, ProjectedRule | NewtonRule | InstalledRule):
        raise UserError(f"{where}: the rule {rule.kind} needs the number of steps: Schedule(steps=...)")
    capped = isinstance(rule, ProjectedRule | AnytimeRule) and rule.curvature_cap
    if not schedule.beta and (capped or isinstance(rule, NewtonRule | InstalledRule)):
        hint = ", or `curvature_cap: false` in the rule" if capped else ""
        raise UserError(
            f"{where}: the rule {rule.kind} needs the trainer's weight of the KL divergence, above 0:"
            f" Schedule(beta=...){hint}"
        )
    rho = settings.rho if settings.rho is not None else settings.upper and settings.upper / 2.0
    if isinstance(rule, FixedRule):
        if settings.first is None:
            raise UserError(f"{where}: the rule fixed needs `first`, the multiplier to keep")
        rho = rho or max(settings.first, 1.0)
    if rho is None:
        raise UserError(f"{where}: give `rho`, half of the multiplier's upper end; no oracle states it here")
    low, high = between or (-0.5, 0.5)
    return first_state(
        settings,
        beta=schedule.beta or 0.0,
        rho=rho,
        first=min(rho / count, settings.upper or math.inf) if settings.first is None else settings.first,
        rounds=schedule.steps or 1,
        bound=math.inf if between is None else 0.5,
        rate=limit.limit.is_share,
        name=limit.limit.name,
        limit=limit.limit.cost_limit,
        scale=high - low,
        centre=(low + high) / 2.0,
    )


def _settings(limit: StatedLimit) -> DualConfig:
    """A limit's own `dual` settings, over the defaults that belong to its rule."""
    dual = limit.dual if isinstance(limit.dual, dict) else {}
    rule = dual.get("rule")
    kind = rule.get("kind", "stepwise") if isinstance(rule, dict) else "stepwise"
    try:
        return (STEPWISE if kind == "stepwise" else DualConfig()).of_limit(limit.where, limit.dual)
    except ValueError as error:
        raise UserError(str(error)) from error
