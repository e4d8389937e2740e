"""The optimum under several limits, from tables: the minimum of the convex dual in the box of the multipliers.

    D(lambda) = b E_x log E_{y~reference} exp((r - sum_i lambda_i (C_i - d_i)) / b),   0 <= lambda <= upper

with b = beta, or beta + mu where a limit is on the KL to the reference and mu is its multiplier: KL is paid for with
beta already, so its multiplier is more of the same. In general limit i is E[C_i] + k_i KL <= d_i and
b = beta + sum_i lambda_i k_i. D is convex with gradient d_i - E[C_i] - k_i KL and Hessian
E_x Cov(C + k log(pi_lambda / reference)) / b under pi_lambda. theory/estimates/prompt_sets.py makes the cost on all
prompts of a limit on some; theory/multipliers/feasibility.py says whether limits can be kept at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from pddpo_ray.records import Array
from pddpo_ray.theory.multipliers.feasibility import log_ratio
from pddpo_ray.theory.multipliers.matrix_dual import box_step


@dataclass(frozen=True, eq=False)
class LagrangianDual:
    """D as a function of the multipliers [I]. log reference and reward [X, Y], excess costs C - d [I, X, Y]."""

    log_reference: Array
    """-inf where a policy may not go."""
    reward: Array
    excess: Array
    prior: Array
    beta: float
    kl: Array | None = None
    """k_i: how much of the KL to the reference limit i is about; a `kl` limit has no costs beside it. None: 0. [I]"""

    def temperature(self, multipliers: Array) -> float:
        """beta, and what the multipliers of limits on the KL add to it."""
        return self.beta if self.kl is None else self.beta + float(self.kl @ multipliers)

    def policy(self, multipliers: Array) -> Array:
        """pi_lambda, the maximiser of the Lagrangian. [X, Y]"""
        logits = self._logits(multipliers)
        return np.asarray(np.exp(logits - logsumexp(logits, axis=1, keepdims=True)))

    def value(self, multipliers: Array) -> float:
        return float(self.temperature(multipliers) * self.prior @ logsumexp(self._logits(multipliers), axis=1))

    def violations(self, policy: Array) -> Array:
        """g_i = E[C_i] + k_i KL - d_i. [I]"""
        return np.array([self.prior @ np.sum(policy * excess, axis=1) for excess in self._with_kl(policy)])

    def covariance(self, policy: Array) -> Array:
        """b times the Hessian of D: E_x Cov_{y ~ policy}[C + k log(policy / reference)]. [I, I]"""
        count = len(self.excess)
        costs = self._with_kl(policy)
        centred = [excess - np.sum(policy * excess, axis=1, keepdims=True) for excess in costs]
        matrix = np.empty((count, count))
        for i in range(count):
            weighted = policy * centred[i]
            for j in range(i, count):
                matrix[i, j] = matrix[j, i] = self.prior @ np.sum(weighted * centred[j], axis=1)
        return matrix

    def _logits(self, multipliers: Array) -> Array:
        score = self.reward - np.tensordot(multipliers, self.excess, 1)
        return np.asarray(self.log_reference + score / self.temperature(multipliers))

    def _with_kl(self, policy: Array) -> Array:
        """C - d + k log(policy / reference), whose mean under `policy` is the violation. [I, X, Y]"""
        if self.kl is None:
            return self.excess
        return np.asarray(self.excess + self.kl[:, None, None] * log_ratio(policy, self.log_reference))


def kkt_residual(multipliers: Array, slope: Array, upper: ArrayLike = np.inf) -> float:
    """How far multipliers are from the minimum of D over [0, upper]: max |lambda - clip(lambda - slope)|. [I], [I]

    0 exactly where the slope vanishes, points outwards at 0 (a slack limit) or inwards at `upper` (a cut-off one).
    """
    return float(np.abs(multipliers - np.clip(multipliers - slope, 0.0, upper)).max(initial=0.0))


def minimise(
    dual: LagrangianDual, upper: ArrayLike = np.inf, *, tolerance: float = 1e-12, iterations: int = 200
) -> Array:
    """Multipliers that minimise D over the box 0 <= lambda <= upper, by Newton with the box inside its step. -> [I]

    The caller checks `kkt_residual`: without a finite `upper`, limits that cannot be kept together have no minimum.
    """
    ceiling = np.broadcast_to(np.asarray(upper, dtype=np.float64), (len(dual.excess),))
    multipliers = np.zeros(len(dual.excess))
    for _ in range(iterations):
        policy = dual.policy(multipliers)
        slope = -dual.violations(policy)
        if kkt_residual(multipliers, slope, ceiling) <= tolerance:
            break
        curvature = dual.covariance(policy) / dual.temperature(multipliers)
        step = _newton_step(curvature, slope, -multipliers, ceiling - multipliers)
        following = _line_search(dual, multipliers, step, slope)
        if np.array_equal(following, multipliers):
            break
        multipliers = np.clip(following, 0.0, ceiling)
    return multipliers


def _newton_step(curvature: Array, slope: Array, low: Array, high: Array) -> Array:
    """Newton's step inside its box. Costs are scaled by their own curvature first: minutes and shares weigh alike."""
    # where a policy is almost certain of its answers there is hardly any curvature left to divide by
    scale = 1.0 / np.sqrt(np.maximum(np.diag(curvature), 1e-9))
    hessian = curvature * np.outer(scale, scale) + 1e-9 * np.eye(len(scale))
    step, _ = box_step(-slope * scale, hessian, low / scale, high / scale)
    return np.clip(scale * step, low, high)


def _line_search(dual: LagrangianDual, multipliers: Array, step: Array, slope: Array) -> Array:
    """The longest of the steps 1, 1/2, 1/4, ... that lowers D enough; the multipliers themselves at the minimum."""
    before = dual.value(multipliers)
    promised = float(-slope @ step)
    for halving in range(60):
        trial = multipliers + 0.5**halving * step
        # close to the minimum the decrease drowns in rounding; Newton's own step is right there
        if before - dual.value(trial) >= 1e-4 * 0.5**halving * promised - 1e-15 * max(1.0, abs(before)):
            return np.asarray(trial)
    return multipliers
