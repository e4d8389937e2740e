"""The optimum under several limits at once: max f subject to E[c_i] <= d_i for every i (paper.md §1, §19).

    D(lambda) = beta E_x log E_{y~reference} exp((r - sum_i lambda_i (c_i - d_i)) / beta),   lambda >= 0

is convex with gradient d_i - E[c_i] and Hessian Cov(c) / beta under pi_lambda, so a projected Newton method finds the
multipliers to the last digits. The largest margin by which all limits can be kept is a linear program.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.special import logsumexp

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LagrangianDual:
    """D as a function of the multipliers [I]. log reference and reward [X, Y], excess costs c - d [I, X, Y]."""

    log_reference: Array
    """-inf where a policy may not go."""
    reward: Array
    excess: Array
    prior: Array
    beta: float

    def policy(self, multipliers: Array) -> Array:
        """pi_lambda, the maximiser of the Lagrangian. [X, Y]"""
        logits = self._logits(multipliers)
        return np.asarray(np.exp(logits - logsumexp(logits, axis=1, keepdims=True)))

    def value(self, multipliers: Array) -> float:
        return float(self.beta * self.prior @ logsumexp(self._logits(multipliers), axis=1))

    def violations(self, policy: Array) -> Array:
        """g_i = E[c_i] - d_i. [I]"""
        return np.einsum("x,xy,ixy->i", self.prior, policy, self.excess)

    def curvature(self, policy: Array) -> Array:
        """Hessian of D: E_x Cov_{y ~ policy}[c] / beta. [I, I]"""
        centred = self.excess - np.einsum("xy,ixy->ix", policy, self.excess)[:, :, None]
        return np.einsum("x,xy,ixy,jxy->ij", self.prior, policy, centred, centred) / self.beta

    def _logits(self, multipliers: Array) -> Array:
        return self.log_reference + (self.reward - np.tensordot(multipliers, self.excess, 1)) / self.beta


def minimise(dual: LagrangianDual, *, tolerance: float = 1e-12, iterations: int = 500) -> Array:
    """Multipliers that minimise D over lambda >= 0. -> [I]

    Newton's step in the coordinates that are above 0 or pulled upwards, halved along the projected arc until D falls.
    """
    multipliers = np.zeros(len(dual.excess))
    for _ in range(iterations):
        policy = dual.policy(multipliers)
        slope = -dual.violations(policy)
        free = ~((multipliers <= 0.0) & (slope >= 0.0))
        if np.abs(slope[free]).max(initial=0.0) <= tolerance:
            break
        matrix = dual.curvature(policy)[np.ix_(free, free)]
        # where the policy is almost certain of its answers there is hardly any curvature left to divide by
        matrix += 1e-9 * np.eye(len(matrix))
        direction = np.zeros_like(multipliers)
        direction[free] = np.linalg.solve(matrix, -slope[free])
        following = _step(dual, multipliers, direction, slope)
        if np.array_equal(following, multipliers):
            break
        multipliers = following
    return multipliers


def _step(dual: LagrangianDual, multipliers: Array, direction: Array, slope: Array) -> Array:
    """The longest of the steps 1, 1/2, 1/4, ... along the projected arc that lowers D enough; none at the minimum."""
    before = dual.value(multipliers)
    for halving in range(60):
        trial = np.maximum(multipliers + 0.5**halving * direction, 0.0)
        promised = float(slope @ (multipliers - trial))
        # close to the minimum the decrease drowns in rounding; Newton's own step is right there
        if before - dual.value(trial) >= 1e-4 * promised - 1e-15 * max(1.0, abs(before)):
            return trial
    return multipliers


def largest_margin(excess: Array, prior: Array, support: Mask) -> float:
    """max over policies on `support` of min_i -g_i: by how much all limits can be kept at once. [I, X, Y] -> []

    Variables are the policy's chances on the support and the margin itself.
    """
    cells = np.argwhere(support)
    columns = np.arange(len(cells))
    limits = np.concatenate([prior[cells[:, 0]] * excess[:, cells[:, 0], cells[:, 1]], np.ones((len(excess), 1))], 1)
    rows = np.zeros((len(prior), len(cells) + 1))
    rows[cells[:, 0], columns] = 1.0
    target = np.zeros(len(cells) + 1)
    target[-1] = -1.0
    solution = linprog(
        target,
        A_ub=limits,
        b_ub=np.zeros(len(excess)),
        A_eq=rows,
        b_eq=np.ones(len(prior)),
        bounds=[(0.0, 1.0)] * len(cells) + [(None, None)],
    )
    return float(solution.x[-1])
