"""The dual step for several limits: damped Newton with the covariance of the costs, solved inside its box.

The dual D(lambda) has gradient d_i - E[C_i] and Hessian E_x Cov_{y ~ policy}(C) / beta, so with estimates of both the
step is the minimiser of

    -excess . step + step . H step / 2,     excess_i = C_i - (d_i - margin_i),   H = (Cov + ridge) / (damping * beta)

over 0 <= multiplier + step <= upper and |step| <= trust. Solving first and clipping afterwards is another point, and
misses the optimum where costs are correlated and one of the limits is slack. Costs are divided by the range of their
measure before the step, and multipliers are of the costs as they are.

The multiplier mu of a limit on log policy / reference adds to beta: the temperature is beta + mu, and D'' has it in
beta's place. The drift falls with the square of the temperature, so that a step is only trusted while it at most
doubles or halves it.

Between steps a multiplier is all that is remembered of a limit. It never leaves its box, so nothing winds up while it
sits at an end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import lsq_linear

from pddpo_ray.records import Array
from pddpo_ray.theory.dual import ROUNDS_AT_AN_END

COVARIANCE_ROUNDS = 5
"""A step uses the mean covariance of so many rounds: one in which nothing happens would promise a step without end."""
MOST_NOISE = 0.999
"""Share of a variance that may be taken out as noise, for the same reason. Of rare single labels it can be 0.995."""
SMALLEST_PART = 0.1
"""Of the largest multiplier times standard deviation: below it nothing is said about a cost's noise."""


@dataclass(frozen=True)
class LimitState:
    """One limit's multiplier in [0, upper]. `limit` and multiplier are in units of its measure, as a cost."""

    name: str
    multiplier: float
    upper: float
    limit: float
    scale: float = 1.0
    """Range of the measure."""
    lower: float = 0.0
    """Floor of adaLag's rule, which freezes near 0; Newton's box begins at 0."""
    margin: float = 0.0
    """The dual aims at limit - margin."""
    kl: bool = False
    """Whether the cost is log policy / reference: its multiplier adds to beta."""
    rounds_at_upper: int = 0
    rounds_at_zero: int = 0

    @property
    def aim(self) -> float:
        return self.limit - self.margin


@dataclass(frozen=True, eq=False)
class CostEstimates:
    """Expected costs of all limits from the same answers. means, standard_errors [I], covariance [I, I]

    `covariance` is the one within prompts, E_x Cov_{y ~ policy}(C), as `within_covariance` has it.
    """

    means: Array
    standard_errors: Array
    covariance: Array


@dataclass(frozen=True)
class NewtonRule:
    """`trust` bounds a step, in units of the reward per range of a measure. `ridge` is in squared ranges."""

    beta: float
    trust: float
    damping: float = 0.5
    ridge: float = 1e-4


@dataclass(frozen=True, eq=False)
class MatrixStep:
    """One step of all multipliers. `moved_by[i, j]`: how far limit j moved multiplier i; rows sum to the step."""

    names: tuple[str, ...]
    before: Array
    after: Array
    excess: Array
    moved_by: Array

    def log_lines(self) -> list[str]:
        """`unsafe 0.40 -> 0.52: +0.15 by unsafe, -0.03 by length`, for every multiplier that moved."""
        lines = []
        for name, old, new, parts in zip(self.names, self.before, self.after, self.moved_by, strict=True):
            if new == old:
                continue
            shown = [
                (part, cause)
                for part, cause in zip(parts, self.names, strict=True)
                if abs(part) > 0.01 * np.abs(parts).max()
            ]
            causes = ", ".join(f"{part:+.3g} by {cause}" for part, cause in sorted(shown, key=lambda one: -abs(one[0])))
            lines.append(f"{name} {old:.4g} -> {new:.4g}: {causes}")
        return lines


def temperature_of(states: Sequence[LimitState], beta: float) -> float:
    """beta + mu: of both stages, where a limit on the drift has the multiplier mu."""
    return beta + sum(state.multiplier for state in states if state.kl)


def recent_covariance(
    covariances: Sequence[Array], temperatures: Sequence[float], states: Sequence[LimitState]
) -> Array:
    """Mean covariance of the last rounds, as it is at the last one's temperature. K times [I, I], [K] -> [I, I]

    log policy / reference is a score divided by the temperature: what it was at another one is put on today's.
    """
    kl = np.array([state.kl for state in states])
    factors = [np.where(kl, temperature / temperatures[-1], 1.0) for temperature in temperatures]
    today = [one * np.outer(factor, factor) for one, factor in zip(covariances, factors, strict=True)]
    return np.asarray(np.mean(today[-COVARIANCE_ROUNDS:], axis=0))


def newton_step(
    states: Sequence[LimitState], estimates: CostEstimates, rule: NewtonRule, *, held: Collection[str] = ()
) -> tuple[tuple[LimitState, ...], MatrixStep]:
    """The next multipliers of all limits at once; those of the limits that are `held` stay, and the others move as if
    these were given. Raises ValueError where an estimate is no finite number.
    """
    scales = np.array([state.scale for state in states])
    multipliers = np.array([state.multiplier for state in states])
    upper = np.array([state.upper for state in states])
    excess = estimates.means - np.array([state.aim for state in states])
    if not np.isfinite(excess).all():
        missing = states[int(np.argmin(np.isfinite(excess)))].name
        raise ValueError(f"{missing}: the estimate is not a finite number; a dual step needs one for every limit")
    beta, kl = temperature_of(states, rule.beta), np.array([state.kl for state in states])
    covariance = estimates.covariance / np.outer(scales, scales) + rule.ridge * np.eye(len(states))
    low = np.maximum(-multipliers, np.where(kl, -beta / 2.0, -np.inf)) * scales
    high = np.minimum(upper - multipliers, np.where(kl, beta, np.inf)) * scales
    low, high = np.maximum(low, -rule.trust), np.minimum(high, rule.trust)
    still = np.array([state.name in held for state in states])
    low, high = np.where(still, 0.0, low), np.where(still, 0.0, high)
    step, parts = box_step(excess / scales, covariance / (rule.damping * beta), low, high)
    # the ends themselves, where rounding would leave a multiplier just off them
    after = np.where(step <= -multipliers * scales, 0.0, np.minimum(multipliers + step / scales, upper))
    after = np.where(still, multipliers, after)
    moved = tuple(
        one if one.name in held else _counted(replace(one, multiplier=float(new)), e > 0)
        for one, new, e in zip(states, after, excess, strict=True)
    )
    record = MatrixStep(tuple(state.name for state in states), multipliers, after, excess, parts / scales[:, None])
    return moved, record


def apart_step(
    states: Sequence[LimitState], estimates: CostEstimates, rate: float, *, held: Collection[str] = ()
) -> tuple[LimitState, ...]:
    """adaLag's rule for each limit by itself: log lambda += rate * lambda * excess, both per range of the measure.

    The multipliers of the limits that are `held` stay.
    """
    moved = []
    for state, mean in zip(states, estimates.means, strict=True):
        if state.name in held:
            moved.append(state)
            continue
        excess = float(mean) - state.aim
        value = state.multiplier * state.scale
        # the exponent is bounded so that one wild estimate cannot overflow; the projection decides anyway
        grown = value * math.exp(min(rate * value * excess / state.scale, 50.0)) / state.scale
        projected = min(max(grown, state.lower), state.upper)
        moved.append(_counted(replace(state, multiplier=projected), excess > 0))
    return tuple(moved)


def box_step(excess: Array, hessian: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """argmin over low <= step <= high of -excess . step + step . H step / 2, and what each limit had in it. [I], [I, I]

    With H = R^T R that is the least-squares problem |R step - R^-T excess| in a box. At its solution a free coordinate
    obeys H_ff step_f = excess_f - H_fb step_b, which splits the step linearly; a coordinate at an end is its own doing.
    """
    root = np.linalg.cholesky(hessian).T
    free, step = high > low, np.where(high > low, 0.0, low)
    if free.any():
        # a coordinate whose box is a point is left out: the solver wants an interior
        rest = np.linalg.solve(root.T, excess) - root[:, ~free] @ step[~free]
        solution = lsq_linear(root[:, free], rest, bounds=(low[free], high[free]), method="bvls", tol=1e-14)
        step[free] = np.clip(solution.x, low[free], high[free])
        free[free] = solution.active_mask == 0
    parts = np.diag(np.where(free, 0.0, step))
    inverse = np.linalg.inv(hessian[np.ix_(free, free)])
    parts[np.ix_(free, free)] = inverse * excess[free]
    parts[np.ix_(free, ~free)] = -inverse @ hessian[np.ix_(free, ~free)] * step[~free]
    return step, parts


def within_covariance(costs: ArrayLike, prompts: Sequence[Hashable], label_noise: ArrayLike | None = None) -> Array:
    """E_x Cov_{y|x}(C) from measured answers, the noise of their labels taken out. costs [n, I] -> [I, I]

    Answers of one prompt give its covariance, prompts count by their answers less one. `label_noise` [n, I] is the
    variance of each measured value about its expectation (`label_variance`; 0 for a rule). A cost that was not measured
    is nan: a covariance is then that of the answers with both costs. Where no prompt has two answers the total
    covariance stands in, which is larger: steps are shorter then, and end at the same point.
    """
    values = np.asarray(costs, dtype=np.float64)
    several = _several(prompts)
    if not several:
        return _about_means(values, [list(range(len(values)))])
    covariance = _about_means(values, several)
    if label_noise is not None:
        used = [index for members in several for index in members]
        known = np.isfinite(values[used])
        noise = np.asarray(label_noise, dtype=np.float64)[used]
        noise = np.where(known, noise, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        covariance -= np.diag(np.minimum(noise, MOST_NOISE * np.diag(covariance)))
    return _positive(covariance)


def noise_beside_learned(
    costs: ArrayLike, learned: ArrayLike, multipliers: ArrayLike, prompts: Sequence[Hashable]
) -> Array:
    """Variance of the label noise in each measured cost, told apart by what was learned before. [n, I], [n], [I] -> [I]

    One label of an answer says nothing about its own noise, and at a limit of 1 % it may be nearly all that varies.
    `learned` is sum_j lambda_j C_j as the policy has it from earlier labels: temperature * log base / policy of the
    value stage. The noise of new labels is independent of it, so that

        E_x Cov(C_i + noise_i, learned) = sum_j lambda_j Cov(C_i, C_j)

    and sum_j lambda_j of the measured covariances is more than that by lambda_i times the noise. Where what was learned
    is wrong, the covariance without this "noise" is still the slope that a step needs: -Cov(C_i, learned) is what moves
    E[C_i] of the policies exp(-learned / temperature) as all multipliers grow in proportion. nan: nothing was learned,
    no prompt has two answers, or the limit has less than a tenth of the largest lambda_j sd(C_j), so that the others'
    noise would drown its own.
    """
    values = np.column_stack([np.asarray(costs, dtype=np.float64), np.asarray(learned, dtype=np.float64)])
    weights, several = np.asarray(multipliers, dtype=np.float64), _several(prompts)
    if not several:
        return np.full(len(weights), np.nan)
    together = _about_means(values, several)
    covariance, with_learned = together[:-1, :-1], together[:-1, -1]
    parts = weights * np.sqrt(np.diag(covariance))
    seen = (parts > 0) & (parts >= SMALLEST_PART * parts.max(initial=0.0)) & (together[-1, -1] > 0)
    return np.divide(covariance @ weights - with_learned, weights, out=np.full(len(weights), np.nan), where=seen)


def _several(prompts: Sequence[Hashable]) -> list[list[int]]:
    """Indices of the answers of each prompt that has more than one."""
    groups: dict[Hashable, list[int]] = {}
    for index, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(index)
    return [members for members in groups.values() if len(members) > 1]


def _about_means(values: Array, groups: Sequence[Sequence[int]]) -> Array:
    """Mean product of two columns about the means of their groups, over rows in which both are known. -> [I, I]"""
    total, freedom = np.zeros((2, values.shape[1], values.shape[1]))
    for members in groups:
        own = values[members]
        known = np.isfinite(own)
        counts = known.sum(axis=0)
        centred = np.where(known, own, 0.0)
        centred -= known * (centred.sum(axis=0) / np.maximum(counts, 1))
        total += centred.T @ centred
        both = known.astype(np.float64).T @ known
        freedom += np.maximum(both - 1.0, 0.0)
    return np.divide(total, freedom, out=np.zeros_like(total), where=freedom > 0)


def label_variance(unsafe_shares: ArrayLike, labels_each: int) -> Array:
    """Unbiased variance of a mean of M labels about its probability, p (1 - p) / (M - 1); 0 at M = 1. [n] -> [n]

    One label says nothing about its own noise; `noise_beside_learned` does.
    """
    shares = np.asarray(unsafe_shares, dtype=np.float64)
    return shares * (1.0 - shares) / (labels_each - 1) if labels_each > 1 else np.zeros_like(shares)


def message_of(state: LimitState) -> str | None:
    """Says in words that a multiplier stays at an end of its interval; None otherwise."""
    if state.rounds_at_zero >= ROUNDS_AT_AN_END:
        return (
            f"{state.name}: the multiplier is 0 for {state.rounds_at_zero} rounds: the limit does not bind, the policy"
            " keeps it without being held to it"
        )
    if state.rounds_at_upper >= ROUNDS_AT_AN_END:
        return (
            f"{state.name}: the multiplier is at its upper end {state.upper:.4g} for {state.rounds_at_upper} rounds and"
            " the estimate stays above the limit: it cannot be kept by this model and data, or dual.rho is too small"
        )
    return None


def _counted(state: LimitState, above: bool) -> LimitState:
    """The state after a step, with how long its multiplier is at an end."""
    at_upper = state.multiplier >= state.upper and above
    return replace(
        state,
        rounds_at_upper=state.rounds_at_upper + 1 if at_upper else 0,
        rounds_at_zero=state.rounds_at_zero + 1 if state.multiplier <= 0.0 else 0,
    )


def _positive(covariance: Array) -> Array:
    """The nearest positive semidefinite matrix: an estimate less its noise may have negative eigenvalues."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
