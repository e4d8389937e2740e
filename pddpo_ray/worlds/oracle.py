"""Exact answers of a world with finitely many outcomes per prompt.

Everything is a float64 sum over tables prior [X] and reference, reward, cost [X, Y]. An outcome need not be a single
text: the text world puts all text outside its grammar into one more column. A world may have limits on further costs
(`Oracle.further`); the first cost and its limit keep their own names throughout.

A limit is E[cost] + kl KL(policy || reference) <= threshold. In nearly all `kl` is 0; in a limit on the KL itself the
cost is 0 everywhere, and its multiplier times `kl` adds to beta.

With several limits the multipliers minimise the dual (theory/multipliers/several_limits.py), checked by KKT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from pddpo_ray.records import Array
from pddpo_ray.theory.multipliers.feasibility import KlTerm, largest_margin, log_ratio
from pddpo_ray.theory.multipliers.several_limits import LagrangianDual, kkt_residual, minimise
from pddpo_ray.theory.output import output_weights

Mask = NDArray[np.bool_]


KKT_TOLERANCE = 1e-7
"""By how much the conditions of an optimum may be missed, in units of the costs."""


RHO_LEAST = 1e-12
"""Where the multiplier changes nothing, its interval still has a length."""


class InfeasibleError(ValueError):
    """No policy on the given outcomes keeps the expected cost strictly below the limit."""


@dataclass(frozen=True, eq=False)
class Limit:
    """One more limit beside the first: E[cost] + kl KL <= threshold. cost [X, Y]"""

    name: str
    cost: Array
    threshold: float = 0.0
    kl: float = 0.0


@dataclass(frozen=True)
class Optimum:
    """The best policy under the limit(s): max f subject to g <= 0."""

    policy: Array
    """[X, Y], rows sum to 1."""
    multiplier: float
    """lambda* of the first limit; 0 where it does not bind."""
    f: float
    g: float
    """E[cost] + kl KL - threshold of the first limit."""
    further_multipliers: tuple[float, ...] = ()
    further_g: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Oracle:
    """A world's truth. `threshold` is the limit d of the expected cost; rewards and costs lie in [-max, max]."""

    prior: Array
    reference: Array
    reward: Array
    cost: Array
    beta: float
    threshold: float = 0.0
    reward_max: float = 2.0
    cost_max: float = 2.0
    slater_ratio: float = 2.0
    """Slater's point is pi_{r - slater_ratio * lambda* * c}: strictly feasible whenever the limit binds."""
    further: tuple[Limit, ...] = ()
    """Limits on further costs. With them, `dual`, `policy` and `gap_values` are about the first limit alone."""
    first_kl: float = 0.0
    """`kl` of the first limit."""

    def f(self, policy: ArrayLike) -> float:
        """E[reward] - beta KL(policy || reference) of a table [X, Y]."""
        return float(self.f_values(np.asarray(policy, dtype=np.float64)))

    def g(self, policy: ArrayLike) -> float:
        """E[cost] + kl KL - threshold; the policy is feasible iff g <= 0."""
        return float(self.g_values(np.asarray(policy, dtype=np.float64)))

    def further_g(self, policy: ArrayLike) -> tuple[float, ...]:
        """E[cost] + kl KL - threshold of each further limit."""
        table = np.asarray(policy, dtype=np.float64)
        return tuple(float(self._excess_of(table, limit.cost, limit.kl)) - limit.threshold for limit in self.further)

    def kl(self, policy: ArrayLike) -> float:
        """E_x KL(policy || reference) in nats; infinite where the policy leaves the reference's support."""
        return float(self.kl_values(np.asarray(policy, dtype=np.float64)))

    def f_values(self, policies: Array) -> Array:
        """f of many tables at once. [..., X, Y] -> [...]"""
        return self.expectations(policies, self.reward) - self.beta * self.kl_values(policies)

    def g_values(self, policies: Array) -> Array:
        """g of many tables at once. [..., X, Y] -> [...]"""
        return self._excess_of(policies, self.cost, self.first_kl) - self.threshold

    def kl_values(self, policies: Array) -> Array:
        """E_x KL to the reference of many tables at once. [..., X, Y] -> [...]"""
        with np.errstate(divide="ignore"):
            return self.expectations(policies, log_ratio(policies, np.log(self.reference)))

    def expectations(self, policies: Array, values: Array) -> Array:
        """E_{x ~ prior, y ~ policy} values(x, y); outcomes of probability 0 never count. [..., X, Y] -> [...]"""
        with np.errstate(invalid="ignore"):
            terms = np.where(policies > 0, policies * values, 0.0)
        return np.asarray(terms.sum(axis=-1) @ self.prior)

    def gap(self, policy: ArrayLike) -> float:
        """(f* - f) + 2 rho [g]_+, the quantity that the proofs bound; 0 at the optimum, and violation cannot pay.

        With several limits the violations add up.
        """
        return self.gap_of(self.f(policy), self.g(policy), *self.further_g(policy))

    def gap_of(self, f: float, *g: float) -> float:
        """Gap from f and the g of each limit (units of reward)."""
        return self.optimum.f - f + 2.0 * self.rho * sum(max(value, 0.0) for value in g)

    def gap_values(self, f: Array, g: Array) -> Array:
        """Gaps from many f and g. [...] -> [...]"""
        return self.optimum.f - f + 2.0 * self.rho * np.maximum(g, 0.0)

    def tilted(self, reward: Array, cost: Array, multiplier: float | Array, support: Mask | None = None) -> Array:
        """Table proportional to reference * exp((reward - multiplier * cost) / b), on `support` if given.

        b is beta, and multiplier * kl of the first limit more. reward, cost [..., X, Y]; a multiplier per table has
        shape [..., 1, 1]. -> [..., X, Y]
        """
        with np.errstate(divide="ignore"):
            logits = np.log(self.reference) + (reward - multiplier * cost) / (self.beta + multiplier * self.first_kl)
        if support is not None:
            logits = np.where(support, logits, -np.inf)
        return np.asarray(np.exp(logits - logsumexp(logits, axis=-1, keepdims=True)))

    def policy(self, multiplier: float, support: Mask | None = None) -> Array:
        """pi_lambda, the maximiser of the Lagrangian f - lambda g. [X, Y]"""
        return self.tilted(self.reward, self.cost, multiplier, support)

    def dual(self, multiplier: float, support: Mask | None = None) -> float:
        """D(lambda) = max over policies of f - lambda g; convex, D' = -g, D'' = E Var[c] / beta (paper.md §1)."""
        temperature = self.beta + multiplier * self.first_kl
        with np.errstate(divide="ignore"):
            scores = np.log(self.reference) + (self.reward - multiplier * (self.cost - self.threshold)) / temperature
        if support is not None:
            # the policy is confined to the support, its KL still refers to the whole reference
            scores = np.where(support, scores, -np.inf)
        return float(temperature * self.prior @ logsumexp(scores, axis=1))

    def cost_variance(self, policy: ArrayLike) -> float:
        """E_x Var_{y ~ policy}[cost]: beta times the curvature of the dual at the policy's multiplier."""
        table = np.asarray(policy, dtype=np.float64)
        mean = np.sum(table * self.cost, axis=1, keepdims=True)
        return float(self.expectations(table, (self.cost - mean) ** 2))

    def best(self, support: Mask | None = None) -> Optimum:
        """Best policy whose outcomes lie in `support` [X, Y] (all outcomes if None).

        By bisection on g(pi_lambda) = 0; with several limits, or one on the KL, by minimising the dual. Raises
        InfeasibleError where no policy on the support is strictly below the limit(s).
        """
        if self.further or self.first_kl:
            return self._best_of_several(support, 0.0)
        return self._optimum_at(self._root(support), support)

    @cached_property
    def optimum(self) -> Optimum:
        """The world's optimum pi*, lambda*, f*, g*."""
        return self.best()

    def covered_only(self, covered: Mask) -> Optimum:
        """Best policy on the covered outcomes alone: no method can do better without exploring."""
        return self.best(np.asarray(covered, dtype=bool))

    @cached_property
    def rho(self) -> float:
        """Slater's bound (f* - f(s)) / (-g(s)) >= lambda* from the point s = pi_{r - slater_ratio * lambda* * c}.

        Where the limit does not bind, the point is pi_{r - c}, so that rho stays positive and a run can start; costs
        that are all alike leave it at RHO_LEAST. With several limits, or one on the KL, the point is the best policy at
        half of the largest common margin m: (f* - f(s)) / m is at least the sum of the multipliers (and is kept at or
        above beta for the same reason). Raises InfeasibleError where no policy is strictly below the limit.
        """
        if self.further or self.first_kl:
            margin = 0.5 * self._margin(None)
            return max((self.optimum.f - self._best_of_several(None, margin).f) / margin, self.beta)
        multiplier = self.optimum.multiplier
        slater = self.policy(self.slater_ratio * multiplier if multiplier > 0 else 1.0)
        below = -self.g(slater)
        if below <= 0.0:
            raise InfeasibleError("the limit cannot be kept strictly: every policy has exactly this expected cost")
        return max((self.optimum.f - self.f(slater)) / below, RHO_LEAST)

    def _optimum_at(self, multiplier: float, support: Mask | None) -> Optimum:
        policy = self.policy(multiplier, support)
        return Optimum(policy, multiplier, self.f(policy), self.g(policy))

    def _margin(self, support: Mask | None) -> float:
        """By how much all limits can be kept at once. Raises InfeasibleError where they cannot be kept strictly."""
        reachable = self.reference > 0 if support is None else (self.reference > 0) & support
        margin, _ = largest_margin(self._excess(), self.prior, reachable, self._kl_term())
        if margin <= 0:
            raise InfeasibleError(
                f"the limits cannot be met together: some policy cost exceeds its limit by {-margin:.4g}"
            )
        return margin

    def _excess(self) -> Array:
        """c_i - d_i of all limits, the first one first. [1 + I, X, Y]"""
        return np.stack([self.cost - self.threshold, *(limit.cost - limit.threshold for limit in self.further)])

    def _kl_term(self) -> KlTerm | None:
        """The limits' weights on the KL; None where all of them are 0."""
        weights = np.array([self.first_kl, *(limit.kl for limit in self.further)])
        if not weights.any():
            return None
        with np.errstate(divide="ignore"):
            return KlTerm(weights, np.log(self.reference))

    def _excess_of(self, policies: Array, cost: Array, kl: float) -> Array:
        """E[cost] + kl KL of many tables. [..., X, Y] -> [...]"""
        expected = self.expectations(policies, cost)
        return expected + kl * self.kl_values(policies) if kl else expected

    def lagrangian(self, support: Mask | None = None, margin: float = 0.0) -> LagrangianDual:
        """The dual of this problem, every limit lower by `margin`, for policies inside `support`."""
        with np.errstate(divide="ignore"):
            log_reference = np.log(self.reference if support is None else np.where(support, self.reference, 0.0))
        term = self._kl_term()
        weights = None if term is None else term.weights
        return LagrangianDual(log_reference, self.reward, self._excess() + margin, self.prior, self.beta, weights)

    def _best_of_several(self, support: Mask | None, margin: float) -> Optimum:
        """Best policy that keeps every limit by `margin`; g is measured from the limits themselves."""
        self._margin(support)
        dual = self.lagrangian(support, margin)
        multipliers = minimise(dual)
        policy = dual.policy(multipliers)
        residual = kkt_residual(multipliers, -dual.violations(policy))
        if residual > KKT_TOLERANCE:
            raise InfeasibleError(
                f"no multipliers keep these limits: the conditions of an optimum miss by {residual:.2g}"
            )
        first, *further = (float(value) for value in multipliers)
        return Optimum(policy, first, self.f(policy), self.g(policy), tuple(further), self.further_g(policy))

    def _root(self, support: Mask | None) -> float:
        """Smallest multiplier with g(pi_multiplier) <= 0, to the last bits of a float64."""
        if self.g(self.policy(0.0, support)) <= 0:
            return 0.0
        reachable = self.reference > 0 if support is None else (self.reference > 0) & support
        lowest = float(self.prior @ np.where(reachable, self.cost, np.inf).min(axis=1)) - self.threshold
        if lowest >= 0:
            raise InfeasibleError(f"the limit cannot be met: the cheapest policy has g = {lowest:.4g}, not below 0")
        low, high = 0.0, 1.0
        while self.g(self.policy(high, support)) > 0:
            low, high = high, 2.0 * high
        while low < (middle := 0.5 * (low + high)) < high:
            low, high = (middle, high) if self.g(self.policy(middle, support)) > 0 else (low, middle)
        return high


def mixture(policies: Sequence[Array]) -> Array:
    """Marginal of the uniform mixture: g is linear in it, f at least the mean of the f's (paper.md §10). -> [X, Y]"""
    weights = output_weights(len(policies))
    return np.sum([weight * table for weight, table in zip(weights, policies, strict=True)], axis=0)
