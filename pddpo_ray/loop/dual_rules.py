"""The rules of the dual that ship, each made from its section of the recipe (`config.dual` names these functions)."""

from __future__ import annotations

from pddpo_ray.config import AnytimeRule, FixedRule, LogRule, NewtonRule, PidRule, ProjectedRule
from pddpo_ray.theory import dual
from pddpo_ray.theory.dual import Rule, RuleContext


def projected(settings: ProjectedRule, run: RuleContext) -> Rule:
    return dual.ProjectedFixed(run.rounds, run.first, run.cost_max, run.beta if settings.curvature_cap else None)


def anytime(settings: AnytimeRule, run: RuleContext) -> Rule:
    usual = run.rho / (run.cost_max + abs(run.limit))
    step = usual if settings.first_step is None else settings.first_step
    return dual.ProjectedAnytime(step, run.cost_max, run.beta if settings.curvature_cap else None)


def newton(settings: NewtonRule, run: RuleContext) -> Rule:
    return dual.DampedNewton(run.rounds, run.beta, run.cost_max, settings.damping)


def log(settings: LogRule, run: RuleContext) -> Rule:
    return dual.LogMultiplier(settings.rate)


def pid(settings: PidRule, run: RuleContext) -> Rule:
    return dual.Pid(settings.proportional, settings.integral, settings.derivative)


def fixed(settings: FixedRule, run: RuleContext) -> Rule:
    return dual.Fixed()
