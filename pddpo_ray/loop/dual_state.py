"""From the recipe's limits to the first state of their multipliers and the rules that move them."""

from __future__ import annotations

from pddpo_ray.config import (
    AnytimeRule,
    Config,
    ConstraintConfig,
    DualConfig,
    FixedRule,
    LogRule,
    NewtonRule,
    PidRule,
    ProjectedRule,
)
from pddpo_ray.errors import UserError
from pddpo_ray.loop.backends import Backends
from pddpo_ray.theory import dual as dual_rules


def dual_state(config: Config, backends: Backends, rounds: int) -> dual_rules.DualState:
    """First state of the multipliers. What the recipe leaves open comes from the world's oracle."""
    return dual_rules.DualState(tuple(_constraint_state(config, one, backends, rounds) for one in config.constraints))


def _constraint_state(
    config: Config, constraint: ConstraintConfig, backends: Backends, rounds: int
) -> dual_rules.ConstraintState:
    """A constraint's own settings over those of `dual`, over the oracle's rho."""
    own = {key: value for key, value in constraint if key != "name" and value is not None}
    settings = config.dual.model_copy(update=own)
    rho = settings.rho if settings.rho is not None else settings.upper and settings.upper / 2
    if rho is None:
        if backends.world is None:
            raise UserError("dual.rho must be given: without a world there is no oracle that states it")
        rho = backends.world.oracle.rho
    first = settings.first if settings.first is not None else rho
    lower = settings.rule.floor if isinstance(settings.rule, LogRule) else settings.lower
    try:
        return dual_rules.constraint_state(
            constraint.name, rho=rho, rule=dual_rule(config, settings, rho, first, rounds), first=first,
            threshold=settings.threshold, lower=lower, upper=settings.upper, dead_band=settings.dead_band,
        )  # fmt: skip
    except ValueError as error:
        raise UserError(f"dual: {error}") from error


def dual_rule(config: Config, settings: DualConfig, rho: float, first: float, rounds: int) -> dual_rules.Rule:
    """How the multiplier moves."""
    match settings.rule:
        case ProjectedRule(curvature_cap=cap):
            return dual_rules.ProjectedFixed(rounds, first, settings.cost_max, config.beta if cap else None)
        case AnytimeRule(first_step=given, curvature_cap=cap):
            step = rho / (settings.cost_max + abs(settings.threshold)) if given is None else given
            return dual_rules.ProjectedAnytime(step, settings.cost_max, config.beta if cap else None)
        case NewtonRule(damping=damping):
            return dual_rules.DampedNewton(rounds, config.beta, settings.cost_max, damping)
        case LogRule(rate=rate):
            return dual_rules.LogMultiplier(rate)
        case PidRule(proportional=proportional, integral=integral, derivative=derivative):
            return dual_rules.Pid(proportional, integral, derivative)
        case FixedRule():
            return dual_rules.Fixed()
