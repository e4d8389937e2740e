"""The dual variable as arithmetic: one step of each rule, for a vector of constraints (paper.md §6).

    estimate above the limit  ->  the multiplier rises;  projection onto [lower, upper], upper = 2 rho

Labels may be late: the estimate is then of the policy of s rounds ago, made at another multiplier. Newton's step knows
the slope's slope and carries the estimate to the present multiplier, so that a delay makes nothing swing that would not
swing without one. Gradient steps get shorter: by sqrt(1 + 2s), which keeps their bound on the regret, and below a cap
at which a linear dual comes to rest (`stale_share`).

`ascend` is a pure function of a state and an estimate. Whoever owns the multiplier (an object in this process or a
named actor) keeps the state, calls it and journals the step; replaying the estimates rebuilds the state exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from pddpo_ray.records import CostEstimate

ROUNDS_AT_AN_END = 3
"""Rounds at an end of the interval after which the state says so in words."""


class Rule(Protocol):
    """How one constraint's multiplier answers an estimate. A rule is a frozen record of plain numbers."""

    def next(self, constraint: ConstraintState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        """Unprojected next multiplier, the linear step size that it amounts to, and the rule's new memory."""
        ...


@dataclass(frozen=True)
class RuleContext:
    """What a rule may be made from, beside its own settings."""

    beta: float
    """Weight of the KL divergence."""
    rho: float
    """Half of the multiplier's upper end, unless that is given."""
    first: float
    """Multiplier of round 1."""
    rounds: int
    cost_max: float
    """Costs lie in [-cost_max, cost_max]."""
    threshold: float
    """The limit d on the expected cost."""


@dataclass(frozen=True)
class Memory:
    """What a rule remembers between steps (of those that ship PID alone uses it)."""

    integral: float = 0.0
    previous_excess: float | None = None


@dataclass(frozen=True)
class ProjectedFixed:
    """lambda + eta (c~ - d) with eta = first / (C' sqrt(K)), C' = C + |d|: the paper's rule; K is fixed in advance.

    eta is proportional to the first multiplier, never 0 (paper.md erratum 10). `curvature_beta` turns on the
    cap eta < 2 beta / Var(c), beyond which a gradient step on the dual diverges when every fit is solved exactly.
    `step` replaces the theory's eta.
    """

    rounds: int
    first: float
    cost_max: float
    curvature_beta: float | None = None
    step: float | None = None

    def next(self, constraint: ConstraintState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        eta = self.step
        if eta is None:
            eta = self.first / ((self.cost_max + abs(constraint.threshold)) * math.sqrt(self.rounds))
            eta /= math.sqrt(1 + 2 * estimate.rounds_late)
        return _gradient_step(constraint, estimate, eta, self.curvature_beta, self.cost_max)


@dataclass(frozen=True)
class ProjectedAnytime:
    """lambda + eta_k (c~ - d) with eta_k = first_step / sqrt(k), k = 1, 2, ...; needs no horizon (paper.md erratum 11).

    The usual first step is rho / C'.
    """

    first_step: float
    cost_max: float
    curvature_beta: float | None = None

    def next(self, constraint: ConstraintState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        eta = self.first_step / math.sqrt((constraint.steps + 1) * (1 + 2 * estimate.rounds_late))
        return _gradient_step(constraint, estimate, eta, self.curvature_beta, self.cost_max)


@dataclass(frozen=True)
class LogMultiplier:
    """log lambda += rate * lambda * (c~ - d), adaLag's rule. For compatibility, never a default.

    Its linear step is about rate * lambda^2, so it freezes near 0; the state's `lower` must be a floor such as 0.05.
    """

    rate: float

    def next(self, constraint: ConstraintState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        value = constraint.multiplier
        # the exponent is bounded so that one wild estimate cannot overflow; the projection decides anyway
        grown = value * math.exp(min(self.rate * value * constraint.excess(estimate), 50.0))
        return grown, self.rate * value**2, constraint.memory


@dataclass(frozen=True)
class DampedNewton:
    """lambda + damping (c~ - d) beta / Var(c), clipped to a trust region of +-0.5 upper / sqrt(K), or +-`trust`.

    No bound on its regret is known here: the guarantees of paper.md §11 are those of the projected rules.

    Slope and curvature of the dual are both estimable: D' = -(c - d) and D'' = E_x Var(c | x) / beta. The variance is
    the one within prompts where the estimate knows it; else that of all responses, which is larger.

    A late estimate says where the multiplier of its own policy should have gone. The step goes there from today's:
    lambda + damping (lambda_then + (c~ - d) beta / Var(c) - lambda). Near the optimum the error then obeys
    e <- (1 - damping) e + damping (1 - g) e_then, g the curvature over its estimate, which shrinks at any delay
    wherever it does without one (0 < g < 2).
    """

    rounds: int
    beta: float
    cost_max: float
    damping: float = 1.0
    trust: float | None = None

    def next(self, constraint: ConstraintState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        eta = self.damping * self.beta / curvature_variance(estimate, self.cost_max)
        radius = 0.5 * constraint.upper / math.sqrt(self.rounds) if self.trust is None else self.trust
        step = min(max(eta * constraint.excess(estimate) - self.damping * estimate.moved, -radius), radius)
        return constraint.multiplier + step, eta, constraint.memory


@dataclass(frozen=True)
class Pid:
    """Kp e + I + Kd [e - e_previous]_+ with e = c~ - d and I = [I + Ki e]_+, which starts at the first multiplier.

    The derivative part acts on rising cost alone. Damps the overshoot of the plain rule; no guarantee comes with it.
    """

    proportional: float
    integral: float
    derivative: float = 0.0

    def next(self, constraint: ConstraintState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        excess, memory = constraint.excess(estimate), constraint.memory
        # the integral is kept inside the multiplier's interval, or it would wind up while the projection holds
        total = min(max(memory.integral + self.integral * excess, constraint.lower), constraint.upper)
        rise = 0.0 if memory.previous_excess is None else max(excess - memory.previous_excess, 0.0)
        value = self.proportional * excess + total + self.derivative * rise
        return value, self.proportional + self.integral, Memory(total, excess)


@dataclass(frozen=True)
class Fixed:
    """No ascent: the multiplier stays where it is (SACPO with beta / lambda, PD-DPO with fixed lambda)."""

    def next(self, constraint: ConstraintState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        return constraint.multiplier, 0.0, constraint.memory


@dataclass(frozen=True)
class ConstraintState:
    """One constraint's multiplier in [lower, upper] and what its rule remembers.

    `threshold` is the limit d. It enters here alone: pairs and labels do not change when the limit moves.
    `dead_band` skips steps whose excess is below one standard error.
    """

    name: str
    multiplier: float
    upper: float
    threshold: float
    rule: Rule
    lower: float = 0.0
    dead_band: bool = False
    steps: int = 0
    rounds_at_upper: int = 0
    rounds_at_lower: int = 0
    memory: Memory = Memory()
    margin: float = 0.0
    """The multiplier aims at threshold - margin, so that a test can show that the limit is kept."""

    def excess(self, estimate: CostEstimate) -> float:
        """Estimated cost above what is aimed at, c~ - (d - margin)."""
        return estimate.value - (self.threshold - self.margin)


@dataclass(frozen=True)
class DualState:
    """Multipliers of all constraints; a single constraint is a tuple of length 1."""

    constraints: tuple[ConstraintState, ...]

    def __getitem__(self, name: str) -> ConstraintState:
        for constraint in self.constraints:
            if constraint.name == name:
                return constraint
        raise KeyError(f"no constraint {name!r}; there are {', '.join(c.name for c in self.constraints)}")

    @property
    def multiplier(self) -> float:
        """Multiplier of the only constraint (of the first one, where there are several)."""
        return self.constraints[0].multiplier

    @property
    def multipliers(self) -> tuple[float, ...]:
        return tuple(constraint.multiplier for constraint in self.constraints)


@dataclass(frozen=True)
class DualStep:
    """Record of one step, as it is journalled. `eta` is the linear step size that was used, after the cap."""

    constraint: str
    estimate: CostEstimate
    threshold: float
    multiplier_before: float
    multiplier_after: float
    eta: float
    message: str | None = None


def constraint_state(
    name: str,
    *,
    rho: float,
    rule: Rule,
    first: float | None = None,
    threshold: float = 0.0,
    lower: float = 0.0,
    upper: float | None = None,
    dead_band: bool = False,
    margin: float = 0.0,
) -> ConstraintState:
    """A constraint before its first step: upper = 2 rho and first multiplier = rho unless given.

    Raises ValueError where the bounds are reversed or the first multiplier lies outside them or is 0.
    """
    end, start = 2.0 * rho if upper is None else upper, rho if first is None else first
    if not 0.0 <= lower < end:
        raise ValueError(f"{name}: multiplier bounds are reversed, lower {lower} is not below upper {end}")
    if not (lower <= start <= end and start > 0):
        raise ValueError(f"{name}: first multiplier {start} must be above 0 and inside [{lower}, {end}]")
    memory = Memory(integral=start)
    return ConstraintState(name, start, end, threshold, rule, lower, dead_band, memory=memory, margin=margin)


def ascend(state: DualState, estimate: CostEstimate) -> tuple[DualState, DualStep]:
    """One projected step of the constraint that the estimate names. The other multipliers stay."""
    old = state[estimate.constraint]
    if not math.isfinite(estimate.value):
        raise ValueError(f"{old.name}: the cost estimate is {estimate.value}; a dual step needs a finite number")
    if old.dead_band and abs(old.excess(estimate)) < estimate.standard_error:
        proposed, eta, memory = old.multiplier, 0.0, old.memory
    else:
        proposed, eta, memory = old.rule.next(old, estimate)
    multiplier = min(max(proposed, old.lower), old.upper)
    pressed_up = multiplier >= old.upper and old.excess(estimate) > 0
    new = replace(
        old,
        multiplier=multiplier,
        memory=memory,
        steps=old.steps + 1,
        rounds_at_upper=old.rounds_at_upper + 1 if pressed_up else 0,
        rounds_at_lower=old.rounds_at_lower + 1 if multiplier <= old.lower else 0,
    )
    message = None if isinstance(old.rule, Fixed) else message_of(new)
    step = DualStep(old.name, estimate, old.threshold, old.multiplier, multiplier, eta, message)
    return DualState(tuple(new if c.name == new.name else c for c in state.constraints)), step


def replay(state: DualState, estimates: Iterable[CostEstimate]) -> DualState:
    """State after a sequence of estimates; rebuilds a dual variable from its journal."""
    for estimate in estimates:
        state, _ = ascend(state, estimate)
    return state


def message_of(constraint: ConstraintState) -> str | None:
    """Says in words that the multiplier is stuck at an end of its interval; None otherwise."""
    if constraint.rounds_at_upper >= ROUNDS_AT_AN_END:
        return (
            f"{constraint.name}: the multiplier sits at its upper end {constraint.upper:.4g} for "
            f"{constraint.rounds_at_upper} rounds while the estimate stays above the limit {constraint.threshold:.4g}: "
            "the limit is infeasible for this model and data, or rho is too small (raise dual.rho or the threshold)"
        )
    if constraint.rounds_at_lower >= ROUNDS_AT_AN_END:
        return (
            f"{constraint.name}: the multiplier sits at {constraint.lower:.4g} for "
            f"{constraint.rounds_at_lower} rounds: "
            f"the limit {constraint.threshold:.4g} does not bind, the policy that only follows the reward keeps it"
        )
    return None


def cost_variance(estimate: CostEstimate, cost_max: float) -> float:
    """Variance of the responses' costs from the estimate's standard error, shrunk towards (C/2)^2.

    Label noise and differences between prompts are inside it, so a cap built on it errs on the small side.
    """
    return _shrunk(estimate.standard_error**2 * estimate.responses, estimate.responses, cost_max)


def curvature_variance(estimate: CostEstimate, cost_max: float) -> float:
    """Best estimate of E_x Var(c | x), shrunk towards (C/2)^2; `cost_variance` where prompts have one response."""
    if estimate.within_variance is None:
        return cost_variance(estimate, cost_max)
    return _shrunk(estimate.within_variance, estimate.responses, cost_max)


def _shrunk(variance: float, responses: int, cost_max: float, prior_responses: float = 16.0) -> float:
    return (variance * responses + (cost_max / 2.0) ** 2 * prior_responses) / (responses + prior_responses)


def stale_share(rounds_late: int) -> float:
    """s^s / (s + 1)^(s + 1): largest a for which e <- e - a e_(s rounds ago) dies out without a swing; 1 at s = 0.

    Its characteristic z^(s+1) - z^s + a has real roots up to there, a double one at z = s / (s + 1).
    """
    return float(rounds_late**rounds_late / (rounds_late + 1) ** (rounds_late + 1))


def _gradient_step(
    constraint: ConstraintState, estimate: CostEstimate, eta: float, curvature_beta: float | None, cost_max: float
) -> tuple[float, float, Memory]:
    """Plain step of size eta, capped below 2 beta / Var(c) where `curvature_beta` is given."""
    if curvature_beta is not None:
        # 0.95: the bound itself is where the iteration stops contracting
        cap = 0.95 * 2.0 * curvature_beta / cost_variance(estimate, cost_max)
        eta = min(eta, cap * stale_share(estimate.rounds_late))
    return constraint.multiplier + eta * constraint.excess(estimate), eta, constraint.memory
