"""Optimistic resampling: one draw from the behaviour policy out of n candidates (paper.md §15).

    log w = log policy - log q + tau (b_r + multiplier b_c) / beta,   q = (policy + proposal) / 2

As n grows the draw is one from policy * exp((b_r + multiplier b_c) / beta), the paper's optimistic policy. The
temperature tau keeps the effective sample size up: at beta = 0.1 a bonus of 1 is a factor of e^10.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.records import Array

ESS_FLOOR = 1.5


def exact_base(log_policy: Array, log_proposal: Array) -> Array:
    """log policy - log((policy + proposal) / 2): importance weights of candidates drawn half from each. [n] -> [n]"""
    return log_policy - (np.logaddexp(log_policy, log_proposal) - np.log(2.0))


def bonus_only_base(from_policy: NDArray[np.bool_], proposal_weight: float = 0.2) -> Array:
    """0 for the policy's own candidates, log(proposal_weight) for the proposal's. [n] -> [n]

    For language models: log-probability ratios of long answers would drown any bonus.
    """
    return np.where(from_policy, 0.0, np.log(proposal_weight))


def effective_sample_size(log_weights: Array) -> float:
    """(sum w)^2 / sum w^2, between 1 and n. [n] -> []"""
    return float(_effective_sample_sizes(log_weights[None])[0])


def _effective_sample_sizes(log_weights: Array) -> Array:
    """[m, n] -> [m]"""
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    return np.asarray(weights.sum(axis=1) ** 2 / (weights**2).sum(axis=1))


def temper(base: Array, optimism: Array, *, ess_floor: float = ESS_FLOOR) -> float:
    """Largest tau in (0, 1] at which base + tau * optimism has an effective sample size of at least `ess_floor`.

    0 where no tau has (the base weights alone are too uneven): then the draw follows the policy.
    """
    if len(base) < ess_floor or effective_sample_size(base + optimism) >= ess_floor:
        return 1.0
    # a descending grid, refined around its first success: the effective sample size need not be monotone in tau
    grid = np.append(np.geomspace(1.0, 1e-4, 60), 0.0)
    for _ in range(5):
        positions = np.flatnonzero(_effective_sample_sizes(base + grid[:, None] * optimism) >= ess_floor)
        if positions.size == 0:
            return 0.0
        first = max(int(positions[0]), 1)
        grid = np.linspace(grid[first - 1], grid[first], 33)
    return float(grid[-1])


def resampling_weights(base: Array, optimism: Array, *, ess_floor: float = ESS_FLOOR) -> tuple[Array, float, float]:
    """Normalised weights of the candidates, the tau used and the effective sample size. [n], [n] -> [n], [], []"""
    tau = temper(base, optimism, ess_floor=ess_floor)
    log_weights = base + tau * optimism
    return _normalised(log_weights), tau, effective_sample_size(log_weights)


def optimistic_weights(log_policy: Array, optimism: Array) -> Array:
    """The optimistic policy itself, policy * exp(optimism), where the answers are all there are. [n], [n] -> [n]"""
    return _normalised(log_policy + optimism)


def _normalised(log_weights: Array) -> Array:
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def greedy_weights(advantage: Array, is_taken: NDArray[np.bool_]) -> Array:
    """All weight on the best candidate that is not taken yet (the first of equals; none left: of all). [n], [n] -> [n]

    With `advantage` = log policy - log reference this is best-of-n by the policy's own reward - multiplier * cost.
    """
    scores = advantage if is_taken.all() else np.where(is_taken, -np.inf, advantage)
    weights = np.zeros(len(advantage))
    weights[int(scores.argmax())] = 1.0
    return weights
