"""One step of all limits that are estimated from the same answers and have the rule `DampedNewton`: Newton's, with the
covariance of the costs, solved inside its box.

The dual D(lambda) has gradient d_i - E[C_i] and Hessian E_x Cov_{y ~ policy}(C) / beta, so with estimates of both the
step is the minimiser of

    -excess . step + step . H step / 2,     excess_i = C_i - (d_i - margin_i),   H = (Cov + ridge) / (damping * beta)

over 0 <= multiplier + step <= upper and |step| <= trust. Solving first and clipping afterwards is another point, and
misses the optimum where costs are correlated and one of the limits is slack. Costs are divided by the range of their
measure before the step, and multipliers are of the costs as they are.

The multiplier mu of a limit on log policy / reference adds to beta: the temperature is beta + mu, and D'' has it in
beta's place. The drift falls with the square of the temperature, so that a step is only trusted while it at most
doubles or halves it.

A late estimate says where the multipliers of its own policy should have gone, lambda_then + step; the step goes there
from today's lambda: excess - H' (lambda - lambda_then) stands in the excess's place, H' = (Cov + ridge) / beta.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import lsq_linear

from pddpo_ray.records import Array
from pddpo_ray.theory.multipliers.dual import DampedNewton, DualState, LimitState

COVARIANCE_ROUNDS = 5
"""Rounds whose mean covariance a step uses: one in which nothing happens would promise a step without end."""
MOST_NOISE = 0.999
"""Share of a variance that may be taken out as noise, for the same reason. Of rare single labels it can be 0.995."""
SMALLEST_PART = 0.1
"""Of the largest multiplier times standard deviation: below it a cost's noise is not reported."""


@dataclass(frozen=True, eq=False)
class CostEstimates:
    """Expected costs of all limits from the same answers. means, standard_errors [I], covariance [I, I]

    `covariance` is the one within prompts, E_x Cov_{y ~ policy}(C), as `within_covariance` has it.
    """

    means: Array
    standard_errors: Array
    covariance: Array


@dataclass(frozen=True, eq=False)
class MatrixStep:
    """One step of all multipliers. `moved_by[i, j]`: how far limit j moved multiplier i; rows sum to the step."""

    names: tuple[str, ...]
    before: Array
    after: Array
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


def newton_step(
    states: Sequence[LimitState],
    excess: Array,
    covariance: Array,
    *,
    moved: Array | None = None,
    held: Collection[str] = (),
) -> tuple[tuple[LimitState, ...], MatrixStep]:
    """The next multipliers of all limits whose rule is `DampedNewton` at once; all others, and those that are `held`,
    stay, and what moves moves as if these were given.

    excess [I] is the estimated cost above what is aimed at and covariance [I, I] that of the costs within prompts, both
    in the measures' units; moved [I] is how far the multipliers are from those of the measured policy, by now.
    """
    scales, multipliers, lower, upper = (
        np.array([getattr(state, name) for state in states]) for name in ("scale", "multiplier", "lower", "upper")
    )
    rules = [state.rule if isinstance(state.rule, DampedNewton) else None for state in states]
    first = next(rule for rule in rules if rule is not None)
    free = np.array([rule is not None and one.name not in held for one, rule in zip(states, rules, strict=True)])
    temperature, kl = temperature_of(states, first.beta), np.array([state.kl for state in states])
    ridge, damping = (np.array([getattr(rule or first, name) for rule in rules]) for name in ("ridge", "damping"))
    trust = np.array([(rule or first).radius(state) for rule, state in zip(rules, states, strict=True)])
    hessian = covariance / np.outer(scales, scales) + np.diag(ridge)
    low = np.maximum(lower - multipliers, np.where(kl, -temperature / 2.0, -np.inf)) * scales
    high = np.minimum(upper - multipliers, np.where(kl, temperature, np.inf)) * scales
    low, high = np.where(free, np.maximum(low, -trust), 0.0), np.where(free, np.minimum(high, trust), 0.0)
    scaled = excess / scales if moved is None else excess / scales - hessian @ (moved * scales) / temperature
    step, parts = box_step(scaled, hessian / (np.sqrt(np.outer(damping, damping)) * temperature), low, high)
    # the ends themselves, where rounding would leave a multiplier just off them
    after = np.where(step <= (lower - multipliers) * scales, lower, np.minimum(multipliers + step / scales, upper))
    after = np.where(free, after, multipliers)
    stepped = tuple(
        state.stepped(float(new), bool(above)) if one else state
        for state, one, new, above in zip(states, free, after, excess > 0, strict=True)
    )
    return stepped, MatrixStep(tuple(state.name for state in states), multipliers, after, parts / scales[:, None])


def temperature_of(states: Sequence[LimitState], beta: float) -> float:
    """beta + mu: of both stages, where a limit on the drift has the multiplier mu."""
    return beta + sum(state.multiplier for state in states if state.kl)


def recent_covariance(state: DualState) -> Array:
    """Mean covariance of the last rounds, as it is at the last one's temperature. -> [I, I]

    log policy / reference is a score divided by the temperature: what it was at another one is put on today's.
    """
    kl = np.array([one.kl for one in state.limits])
    beta = next((one.rule.beta for one in state.limits if isinstance(one.rule, DampedNewton)), 0.0)
    today = []
    for mu, matrix in state.covariances:
        factor = np.where(kl, (beta + mu) / (beta + state.covariances[-1][0]), 1.0)
        today.append(np.array(matrix) * np.outer(factor, factor))
    return np.asarray(np.mean(today, axis=0))


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


def _positive(covariance: Array) -> Array:
    """The nearest positive semidefinite matrix: an estimate less its noise may have negative eigenvalues."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
