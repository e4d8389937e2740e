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

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from pddpo_ray.records import Array
from pddpo_ray.theory.multipliers.dual import DampedNewton, DualState, LimitState

COVARIANCE_ROUNDS = 5
"""Rounds whose covariances a step averages: from one round without variation it would be unbounded."""


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
            causes = ", ".join(f"{part:+.3g} by {cause}" for part, cause in sorted(shown, key=lambda row: -abs(row[0])))
            lines.append(f"{name} {old:.4g} -> {new:.4g}: {causes}")
        return lines


def newton_step(
    states: Sequence[LimitState],
    excess: Array,
    covariance: Array,
    *,
    moved: Array | None = None,
    frozen: Collection[str] = (),
) -> tuple[tuple[LimitState, ...], MatrixStep]:
    """The next multipliers of all limits whose rule is `DampedNewton` at once; all others, and those in `frozen`,
    stay, and the step treats these as constants.

    excess [I] is the estimated cost above what is aimed at and covariance [I, I] that of the costs within prompts, both
    in the measures' units; moved [I] is how far the multipliers are from those of the measured policy, by now.
    """
    scales, multipliers, lower, upper = (
        np.array([getattr(state, name) for state in states]) for name in ("scale", "multiplier", "lower", "upper")
    )
    rules = [state.rule if isinstance(state.rule, DampedNewton) else None for state in states]
    first = next(rule for rule in rules if rule is not None)
    free = np.array([rule is not None and state.name not in frozen for state, rule in zip(states, rules, strict=True)])
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
        state.stepped(float(new), bool(above)) if is_free else state
        for state, is_free, new, above in zip(states, free, after, excess > 0, strict=True)
    )
    return stepped, MatrixStep(tuple(state.name for state in states), multipliers, after, parts / scales[:, None])


def temperature_of(states: Sequence[LimitState], beta: float) -> float:
    """The temperature of both stages: beta + mu, mu the multiplier of a limit on the drift."""
    return beta + sum(state.multiplier for state in states if state.kl)


def recent_covariance(state: DualState) -> Array:
    """Mean covariance of the last rounds, as it is at the last one's temperature. -> [I, I]

    log policy / reference is a score divided by the temperature: what it was at another one is put on today's.
    """
    kl = np.array([limit.kl for limit in state.limits])
    beta = next((limit.rule.beta for limit in state.limits if isinstance(limit.rule, DampedNewton)), 0.0)
    matrices = []
    for mu, matrix in state.covariances:
        factor = np.where(kl, (beta + mu) / (beta + state.covariances[-1][0]), 1.0)
        matrices.append(np.array(matrix) * np.outer(factor, factor))
    return np.asarray(np.mean(matrices, axis=0))


def box_step(excess: Array, hessian: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """argmin over low <= step <= high of -excess . step + step . H step / 2, and what each limit had in it. [I], [I, I]

    With H = R^T R that is the least-squares problem |R step - R^-T excess| in a box. At its solution a free coordinate
    obeys H_ff step_f = excess_f - H_fb step_b, which splits the step linearly; a coordinate at an end is its own doing.
    """
    root = np.linalg.cholesky(hessian).T
    free, step = high > low, np.where(high > low, 0.0, low)
    if free.any():
        # a coordinate whose box is a point is left out: the solver wants an interior
        target = np.linalg.solve(root.T, excess) - root[:, ~free] @ step[~free]
        solution = lsq_linear(root[:, free], target, bounds=(low[free], high[free]), method="bvls", tol=1e-14)
        step[free] = np.clip(solution.x, low[free], high[free])
        free[free] = solution.active_mask == 0
    parts = np.diag(np.where(free, 0.0, step))
    inverse = np.linalg.inv(hessian[np.ix_(free, free)])
    parts[np.ix_(free, free)] = inverse * excess[free]
    parts[np.ix_(free, ~free)] = -inverse @ hessian[np.ix_(free, ~free)] * step[~free]
    return step, parts
