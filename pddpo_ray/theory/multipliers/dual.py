"""The multiplier of one limit: its state, and one step of each rule (paper.md §6).

    estimate above the limit  ->  the multiplier rises;  projection onto [lower, upper], upper = 2 rho

Rules compute with prices: multipliers times the scale of the measure (its range; 1 for the paper's cost), and with
excesses divided by it, so that one setting serves every unit.

Labels may be late: the estimate is then of the policy of s rounds ago, made at another multiplier. Newton's step knows
the slope's slope and carries the estimate to the present multiplier, so that a delay alone makes nothing
oscillate. Steps of the projected rules get shorter by sqrt(1 + 2s), which keeps their bound on the regret, and
below a cap at which a linear dual settles (`stale_share`); those of the other rules by `stale_share` itself.

`ascend` is a pure function of a state and an estimate; `parts.dual_step.ascend_all` moves all limits of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.certificates.power import ComingTest

ROUNDS_AT_AN_END = 3
"""Rounds at an end of the interval after which the state says so in words."""
SLOW = 0.98
"""Decay of slow averages over the steps of a trainer."""


class Rule(Protocol):
    """How one limit's multiplier answers an estimate. A rule is a frozen record of plain numbers."""

    def next(self, limit: LimitState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        """Unprojected next price, the linear step size that it amounts to, and the rule's new memory."""
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
    """Largest distance of a cost from the centre, in scales of the measure; inf: unknown."""
    limit: float
    """The limit d on the expected cost, from the centre and in scales of the measure."""
    rate: bool = False
    """Whether the cost is a share of answers, in [0, 1]."""


@dataclass(frozen=True)
class Memory:
    """What a rule remembers between steps; of the rules here only Stepwise uses it."""

    integral: float = 0.0
    deviation: float = 0.0
    """Slow average of the standard deviation of the costs, in scales."""


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

    def next(self, limit: LimitState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        eta = self.step
        if eta is None:
            eta = self.first / ((self.cost_max + abs(limit.from_centre)) * math.sqrt(self.rounds))
            eta /= math.sqrt(1 + 2 * estimate.rounds_late)
        return _gradient_step(limit, estimate, eta, self.curvature_beta, self.cost_max)


@dataclass(frozen=True)
class ProjectedAnytime:
    """lambda + eta_k (c~ - d) with eta_k = first_step / sqrt(k), k = 1, 2, ...; needs no horizon (paper.md erratum 11).

    The usual first step is rho / C'.
    """

    first_step: float
    cost_max: float
    curvature_beta: float | None = None

    def next(self, limit: LimitState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        eta = self.first_step / math.sqrt((limit.steps + 1) * (1 + 2 * estimate.rounds_late))
        return _gradient_step(limit, estimate, eta, self.curvature_beta, self.cost_max)


@dataclass(frozen=True)
class LogMultiplier:
    """log lambda += rate * lambda * (c~ - d), adaLag's rule. For compatibility, never a default.

    Its linear step is about rate * lambda^2, so it freezes near 0; the state's `lower` must be a floor such as 0.05.
    """

    rate: float

    def next(self, limit: LimitState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        value, rate = limit.price, self.rate * stale_share(estimate.rounds_late)
        # the exponent is bounded so that one wild estimate cannot overflow; the projection decides anyway
        grown = value * math.exp(min(rate * value * limit.excess(estimate), 50.0))
        return grown, rate * value**2, limit.memory


@dataclass(frozen=True)
class DampedNewton:
    """lambda + damping (c~ - d) beta / Var(c), clipped to a trust region of +-0.5 upper / sqrt(K), or +-`trust`.

    No bound on its regret is known here: the guarantees of paper.md §11 are those of the projected rules.

    Slope and curvature of the dual are both estimable: D' = -(c - d) and D'' = E_x Var(c | x) / beta. The variance is
    the one within prompts where the estimate knows it; else that of all responses, which is larger. Limits whose
    covariance is known too move together (`matrix_dual`, of which this is the case of one limit).

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
    ridge: float = 1e-4
    """Added to the variances where limits are moved together (`matrix_dual`), in squared scales."""

    def next(self, limit: LimitState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        eta = self.damping * self.beta / curvature_variance(limit.scaled(estimate), self.cost_max)
        radius, moved = self.radius(limit), self.damping * estimate.moved * limit.scale
        step = min(max(eta * limit.excess(estimate) - moved, -radius), radius)
        return limit.price + step, eta, limit.memory

    def radius(self, limit: LimitState) -> float:
        """Longest step, as a price."""
        return 0.5 * limit.upper * limit.scale / math.sqrt(self.rounds) if self.trust is None else self.trust


@dataclass(frozen=True)
class Stepwise:
    """gain e + I with I = I + gain / horizon e: for trainers that take a step at a time and never solve a round.

    e is the excess in standard deviations of the costs, kept inside +-2. The deviation is a slow average, at least
    `floor`; of a rate it is sqrt(d (1 - d)).

    Two time scales: the proportional part answers within a step, the integral within `horizon` steps. A policy-gradient
    step of normalised advantages moves the measure about as fast as the price is off its balance, so that the measure
    is an integral of the price: an integral part alone (dual ascent) then keeps swinging, and the proportional part is
    what damps it. While I stays inside the bounds, the mean of e over some steps is (I_end - I_begin) horizon / (gain
    steps), which falls to 0: the measure's mean ends on the limit, whatever the gain. I is held where it could only
    wind up: at the upper end, and where costs differ among the answers to no prompt, so that no gradient can follow.
    """

    rate: bool = False
    floor: float = 0.02
    """Least deviation, in scales; 0 where the scale is unknown."""
    gain: float = 4.0
    horizon: float = 40.0
    """Steps. Both were chosen on a toy policy (tests/unit/math/test_stepwise.py), on no seed that its tests use."""

    def next(self, limit: LimitState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        memory, share = limit.memory, max(1.0 - SLOW, 1.0 / (limit.steps + 1))
        newest = estimate.spread / limit.scale
        deviation = (1.0 - share) * memory.deviation + share * newest
        if self.rate and 0.0 < limit.limit < 1.0:
            unit = math.sqrt(limit.limit * (1.0 - limit.limit))
        else:
            unit = max(deviation, self.floor) or 1.0
        gain, excess = self.gain * stale_share(estimate.rounds_late), limit.excess(estimate) / unit
        pushed, upper = gain * min(max(excess, -2.0), 2.0), limit.upper * limit.scale
        winds_up = memory.integral + pushed >= upper or estimate.within_variance == 0.0
        integral = memory.integral if winds_up and pushed > 0 else memory.integral + pushed / self.horizon
        integral = min(max(integral, limit.lower * limit.scale), upper)
        return integral + pushed, gain * (1.0 + 1.0 / self.horizon) / unit, Memory(integral, deviation)


@dataclass(frozen=True)
class Fixed:
    """No ascent: the multiplier stays where it is (SACPO with beta / lambda, PD-DPO with fixed lambda)."""

    def next(self, limit: LimitState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        return limit.price, 0.0, limit.memory


@dataclass(frozen=True)
class LimitState:
    """One limit's multiplier in [lower, upper], in the unit of its measure as a cost, and what its rule remembers.

    `limit` is d. It enters here alone: pairs and labels do not change when the limit moves.
    """

    name: str
    multiplier: float
    upper: float
    limit: float
    rule: Rule = Fixed()
    scale: float = 1.0
    """Unit of the measure in a price: the measure's range; 1 for the paper's cost, whose unit is the logit."""
    centre: float = 0.0
    """Middle of the measure's range."""
    lower: float = 0.0
    margin: float = 0.0
    """The multiplier aims at limit - margin or above it, so that a test can show that the limit is kept."""
    test: ComingTest | None = None
    """The margin is what this test asks for where answers differ as much as the estimate's, if that is less than
    `margin`; None: it is `margin`."""
    kl: bool = False
    """Whether the cost is log policy / reference: its multiplier adds to beta."""
    steps: int = 0
    rounds_at_upper: int = 0
    rounds_at_lower: int = 0
    memory: Memory = Memory()

    def margin_of(self, estimate: CostEstimate) -> float:
        """How far below the limit the multiplier aims, by how much the estimate's answers differ."""
        if self.test is None:
            return self.margin
        return min(self.margin, self.test.margin(estimate.spread))

    def aim(self, estimate: CostEstimate) -> float:
        """What the multiplier drives the estimated cost to."""
        return self.limit - self.margin_of(estimate)

    @property
    def price(self) -> float:
        """The multiplier per scale of the measure."""
        return self.multiplier * self.scale

    @property
    def from_centre(self) -> float:
        """The limit's distance from the middle of the range, in scales."""
        return (self.limit - self.centre) / self.scale

    def excess(self, estimate: CostEstimate) -> float:
        """Estimated cost above what is aimed at, in scales: (c~ - (d - margin)) / scale."""
        return (estimate.value - self.aim(estimate)) / self.scale

    def scaled(self, estimate: CostEstimate) -> CostEstimate:
        """The estimate with its spread in scales."""
        if self.scale == 1.0:
            return estimate
        variance = None if estimate.within_variance is None else estimate.within_variance / self.scale**2
        return replace(estimate, standard_error=estimate.standard_error / self.scale, within_variance=variance)

    def stepped(self, multiplier: float, above: bool, memory: Memory | None = None) -> LimitState:
        """The state after a step to a multiplier inside the bounds, with how long it has been at an end."""
        return replace(
            self,
            multiplier=multiplier,
            memory=self.memory if memory is None else memory,
            steps=self.steps + 1,
            rounds_at_upper=self.rounds_at_upper + 1 if multiplier >= self.upper and above else 0,
            rounds_at_lower=self.rounds_at_lower + 1 if multiplier <= self.lower else 0,
        )

    @property
    def message(self) -> str | None:
        """Warning that the multiplier stays at an end of its interval; None otherwise."""
        if isinstance(self.rule, Fixed):
            return None
        if self.rounds_at_upper >= ROUNDS_AT_AN_END:
            return (
                f"{self.name}: the multiplier sits at its upper end {self.upper:.4g} for {self.rounds_at_upper} rounds"
                f" while the estimate stays above the limit {self.limit:.4g}: the limit is infeasible for this model"
                " and data, or rho is too small (raise dual.rho or the limit)"
            )
        if self.rounds_at_lower >= ROUNDS_AT_AN_END:
            return (
                f"{self.name}: the multiplier sits at {self.lower:.4g} for {self.rounds_at_lower} rounds: the limit"
                f" {self.limit:.4g} does not bind, the policy keeps it without being held to it"
            )
        return None


@dataclass(frozen=True)
class DualState:
    """Multipliers of all limits of a run; a single limit is a tuple of length 1."""

    limits: tuple[LimitState, ...]
    covariances: tuple[tuple[float, tuple[tuple[float, ...], ...]], ...] = ()
    """Of the last rounds whose estimates had one: what limits on the drift added to beta, and the matrix. [I, I]"""

    def __getitem__(self, name: str) -> LimitState:
        for limit in self.limits:
            if limit.name == name:
                return limit
        raise KeyError(f"no limit {name!r}; there are {', '.join(limit.name for limit in self.limits)}")

    @property
    def multiplier(self) -> float:
        """Multiplier of the only limit (of the first one, where there are several)."""
        return self.limits[0].multiplier

    @property
    def multipliers(self) -> tuple[float, ...]:
        return tuple(limit.multiplier for limit in self.limits)

    def with_limit(self, new: LimitState) -> DualState:
        return replace(self, limits=tuple(new if limit.name == new.name else limit for limit in self.limits))


@dataclass(frozen=True)
class DualStep:
    """Record of one limit's step, as it is journalled. `eta` is the linear step size that was used, after the cap."""

    constraint: str
    estimate: CostEstimate
    multiplier_before: float
    multiplier_after: float
    eta: float
    message: str | None = None
    margin: float = 0.0
    """How far below the limit it aimed."""


def limit_state(
    name: str,
    *,
    rho: float,
    rule: Rule,
    first: float | None = None,
    limit: float = 0.0,
    lower: float = 0.0,
    upper: float | None = None,
    scale: float = 1.0,
    centre: float = 0.0,
    margin: float = 0.0,
    test: ComingTest | None = None,
    kl: bool = False,
) -> LimitState:
    """A limit before its first step. `rho`, `first`, `lower` and `upper` are prices: upper = 2 rho and first = rho
    unless given.

    Raises ValueError where the bounds are reversed, the first price lies outside them, or a rule whose step is
    proportional to it begins at 0.
    """
    end, start = 2.0 * rho if upper is None else upper, rho if first is None else first
    if not 0.0 <= lower < end:
        raise ValueError(f"{name}: multiplier bounds are reversed, lower {lower} is not below upper {end}")
    if not lower <= start <= end:
        raise ValueError(f"{name}: first multiplier {start} must be inside [{lower}, {end}]")
    if start == 0.0 and isinstance(rule, ProjectedFixed):
        raise ValueError(f"{name}: first multiplier 0 must be above 0, for the step of a projected rule grows with it")
    return LimitState(
        name, start / scale, end / scale, limit, rule, scale, centre, lower / scale, margin, test, kl,
        memory=Memory(integral=start),
    )  # fmt: skip


def ascend(state: DualState, estimate: CostEstimate) -> tuple[DualState, DualStep]:
    """One projected step of the limit that the estimate names, by its own rule. The other multipliers stay."""
    old = state[estimate.constraint]
    if not math.isfinite(estimate.value):
        raise ValueError(f"{old.name}: the cost estimate is {estimate.value}; a dual step needs a finite number")
    price, eta, memory = old.rule.next(old, estimate)
    multiplier = min(max(price / old.scale, old.lower), old.upper)
    new = old.stepped(multiplier, old.excess(estimate) > 0, memory)
    return state.with_limit(new), DualStep(
        old.name, estimate, old.multiplier, multiplier, eta, new.message, old.margin_of(estimate)
    )


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
    limit: LimitState, estimate: CostEstimate, eta: float, curvature_beta: float | None, cost_max: float
) -> tuple[float, float, Memory]:
    """Plain step of size eta, capped below 2 beta / Var(c) where `curvature_beta` is given."""
    if curvature_beta is not None:
        # 0.95: the bound itself is where the iteration stops contracting
        cap = 0.95 * 2.0 * curvature_beta / cost_variance(limit.scaled(estimate), cost_max)
        eta = min(eta, cap * stale_share(estimate.rounds_late))
    return limit.price + eta * limit.excess(estimate), eta, limit.memory
