"""The first state of a multiplier, and the rules of the dual that ship, each made from its section of the recipe
(`config.dual` names these functions)."""

from __future__ import annotations

import math
from typing import Any

from pddpo_ray.config.sections.dual import (
    AnytimeRule,
    DualConfig,
    FixedRule,
    InstalledRule,
    LogRule,
    NewtonRule,
    ProjectedRule,
    StepwiseRule,
)
from pddpo_ray.errors import UserError
from pddpo_ray.registry import code_of
from pddpo_ray.theory.multipliers import dual
from pddpo_ray.theory.multipliers.dual import LimitState, Rule, RuleContext


def first_state(
    settings: DualConfig, *, beta: float, rho: float, first: float, rounds: int, bound: float, rate: bool = False,
    **limit: Any,
) -> LimitState:  # fmt: skip
    """A multiplier before its first step. `bound`: how far costs lie from their centre at most, in scales, inf where
    nobody knows. `limit` says what it is about, as `theory.dual.limit_state` takes it.

    Raises UserError for bounds and a first value that exclude each other.
    """
    lower = settings.rule.floor if isinstance(settings.rule, LogRule) else 0.0
    distance = (limit["limit"] - limit.get("centre", 0.0)) / limit.get("scale", 1.0)
    context = RuleContext(beta, rho, first, rounds, bound, distance, rate)
    rule_settings = settings.rule.settings if isinstance(settings.rule, InstalledRule) else settings.rule
    rule: Rule = code_of("dual_rules", settings.rule.kind)(rule_settings, context)
    try:
        return dual.limit_state(rho=rho, rule=rule, first=first, lower=lower, upper=settings.upper, **limit)
    except ValueError as error:
        raise UserError(f"dual: {error}") from error


def projected(settings: ProjectedRule, run: RuleContext) -> Rule:
    return dual.ProjectedFixed(run.rounds, run.first, run.cost_max, run.beta if settings.curvature_cap else None)


def anytime(settings: AnytimeRule, run: RuleContext) -> Rule:
    default_step = run.rho / (run.cost_max + abs(run.limit))
    step = default_step if settings.first_step is None else settings.first_step
    return dual.ProjectedAnytime(step, run.cost_max, run.beta if settings.curvature_cap else None)


def newton(settings: NewtonRule, run: RuleContext) -> Rule:
    return dual.DampedNewton(run.rounds, run.beta, run.cost_max, settings.damping)


def log(settings: LogRule, run: RuleContext) -> Rule:
    return dual.LogMultiplier(settings.rate)


def stepwise(settings: StepwiseRule, run: RuleContext) -> Rule:
    return dual.Stepwise(run.rate) if math.isfinite(run.cost_max) else dual.Stepwise(run.rate, floor=0.0)


def fixed(settings: FixedRule, run: RuleContext) -> Rule:
    return dual.Fixed()
