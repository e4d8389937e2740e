"""Can the limits be kept? What is reachable by choosing among given answers, for each limit alone and for all together.

Excesses are costs minus limits, C_i(x, y) - d_i, tables [I, X, n] over prompts and their n answers; a limit on the
KL to the reference has -d_i everywhere, and a `KlTerm` says how much of the KL it adds. On a world's own answers the
result is exact. On answers of the reference it is a warning only: training reaches what no sample showed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from scipy.special import logsumexp

from pddpo_ray.records import Array

Mask = NDArray[np.bool_]


def log_ratio(policy: Array, log_reference: Array) -> Array:
    """log policy / reference, and 0 where the policy has no probability. [..., X, n]"""
    used = policy > 0
    return np.asarray(np.log(np.where(used, policy, 1.0)) - np.where(used, log_reference, 0.0))


@dataclass(frozen=True, eq=False)
class KlTerm:
    """How much of KL(policy || reference) each limit adds to its costs."""

    weights: Array
    """0 for all limits but those on the KL. [I]"""
    log_reference: Array
    """[X, n]"""

    def kl(self, policy: Array, weights: Array) -> float:
        """E_{x ~ weights} KL in nats. [X, n], [X] -> []"""
        return float(weights @ np.sum(policy * log_ratio(policy, self.log_reference), axis=1))


@dataclass(frozen=True, eq=False)
class Reach:
    """What choosing among answers can reach. `margin` > 0: all limits can be kept at once, by that much."""

    lowest: Array
    """Smallest excess of each limit alone; at most 0 where it can be kept. [I]"""
    margin: float
    """Largest m with excess_i <= -m * scale_i for all limits at once."""
    together: Array
    """Excess of each limit where that margin is reached. [I]"""
    broken: Array
    """Share of each limit's prompts without an answer that keeps it. [I]"""

    @property
    def jointly(self) -> bool:
        return self.margin >= 0.0


def reach(
    excess: Array,
    weights: Array,
    *,
    scales: ArrayLike | None = None,
    factors: Array | None = None,
    measured: Array | None = None,
    answers: Mask | None = None,
    kl: KlTerm | None = None,
) -> Reach:
    """What is reachable on prompts with weights P_0.

    `scales` [I] are the ranges of the measures (None: 1). `factors` [I, X] are P_s(x) / P_0(x) where a limit is about
    a prompt set: its excess is then m - d in each prompt of the set, and the factor is applied here. `measured` is a
    second, independent measurement of the same answers: `excess` chooses, `measured` says what was reached, since the
    smallest of noisy numbers looks lower than it is. `answers` [X, n]: which of the n there are. A limit on the KL
    (`kl`, its weights in the unit of `excess`) is kept best by the reference itself.
    """
    excess = np.asarray(excess, dtype=np.float64)
    mask = np.ones(excess.shape[1:], dtype=bool) if answers is None else answers
    factors = np.ones(excess.shape[:2]) if factors is None else factors
    scales = np.ones(len(excess)) if scales is None else np.asarray(scales, dtype=np.float64)
    second = excess if measured is None else np.asarray(measured, dtype=np.float64)
    best = np.where(mask, excess, np.inf).argmin(axis=2)
    chosen = np.take_along_axis(second, best[:, :, None], axis=2)[:, :, 0]
    shares = factors * weights
    scaled = None if kl is None else KlTerm(kl.weights / scales, kl.log_reference)
    margin, policy = largest_margin(factors[:, :, None] * excess / scales[:, None, None], weights, mask, scaled)
    together = np.einsum("ix,xn,ixn->i", shares, policy, second)
    if kl is not None:
        together = together + kl.weights * kl.kl(policy, weights)
    if measured is not None:
        margin = float(-np.max(together / scales))
    return Reach(
        np.sum(shares * chosen, axis=1), margin, together, np.sum(shares * (chosen > 0), axis=1) / shares.sum(axis=1)
    )


def largest_margin(
    excess: Array,
    weights: Array,
    answers: Mask,
    kl: KlTerm | None = None,
    *,
    tolerance: float = 1e-12,
    cuts: int = 2000,
) -> tuple[float, Array]:
    """max over policies on `answers` of min_i -E[excess_i] - k_i KL, and a policy that reaches it.

    [I, X, n] -> [], [X, n]. By duality it is the minimum over weights of the limits of what the best reply to them
    gains, max over policies of sum_i -w_i (E[excess_i] + k_i KL): a convex function of I - 1 numbers, found by cutting
    planes. A cut is a best reply, and the policy mixes them. Without a KL a reply is the best answer of each prompt, so
    that a world with 100,000 answers a prompt is no large program; with one it is a tilted reference, and the margin is
    found to 1e-6, since such cuts touch a curve.
    """
    replies: _BestAnswers | _TiltedReferences = (
        _BestAnswers(excess, weights, answers) if kl is None else _TiltedReferences(excess, weights, answers, kl)
    )
    tolerance = tolerance if kl is None else max(tolerance, 1e-6)
    gains: list[Array] = []
    limit_weights, best = np.full(len(excess), 1.0 / len(excess)), np.inf
    for _ in range(cuts):
        gain = replies.gain(limit_weights)
        gains.append(gain)
        best = min(best, float(limit_weights @ gain))
        limit_weights, margin, shares = _lowest_of_cuts(np.array(gains))
        if best - margin <= tolerance * max(1.0, abs(best)):
            break
    return margin, replies.mixed(shares)


class _BestAnswers:
    """Best replies where only costs count: one answer of each prompt."""

    def __init__(self, excess: Array, weights: Array, answers: Mask) -> None:
        self._excess, self._weights = excess, weights
        self._hidden = np.where(answers, 0.0, -np.inf)
        self._prompts = np.arange(len(weights))
        self._choices: list[NDArray[np.intp]] = []

    def gain(self, limit_weights: Array) -> Array:
        """-E[excess_i] of the best reply, which is remembered. [I] -> [I]"""
        choice = np.argmax(self._hidden - np.tensordot(limit_weights, self._excess, 1), axis=1)
        self._choices.append(choice)
        return -np.array([self._weights @ excess[self._prompts, choice] for excess in self._excess])

    def mixed(self, shares: Array) -> Array:
        """The mixture of all replies so far. [K] -> [X, n]"""
        policy = np.zeros(self._hidden.shape)
        for choice, share in zip(self._choices, shares, strict=True):
            policy[self._prompts, choice] += share
        return policy


class _TiltedReferences:
    """Best replies where the KL counts too: the reference, tilted by the weighted excess."""

    LEAST = 1e-12
    """Weight of the KL at which the best answer of each prompt has all of the probability."""

    def __init__(self, excess: Array, weights: Array, answers: Mask, kl: KlTerm) -> None:
        self._excess, self._weights, self._kl = excess, weights, kl
        self._log_reference = np.where(answers, kl.log_reference, -np.inf)
        self._past_weights: list[Array] = []

    def gain(self, limit_weights: Array) -> Array:
        """-E[excess_i] - k_i KL of the best reply. [I] -> [I]"""
        self._past_weights.append(limit_weights)
        policy = self._reply(limit_weights)
        costs = np.array([self._weights @ np.sum(policy * excess, axis=1) for excess in self._excess])
        return -costs - self._kl.weights * self._kl.kl(policy, self._weights)

    def mixed(self, shares: Array) -> Array:
        """[K] -> [X, n]"""
        pairs = zip(self._past_weights, shares, strict=True)
        return np.asarray(sum(share * self._reply(limit_weights) for limit_weights, share in pairs if share > 0))

    def _reply(self, limit_weights: Array) -> Array:
        temperature = max(float(limit_weights @ self._kl.weights), self.LEAST)
        logits = self._log_reference - np.tensordot(limit_weights, self._excess, 1) / temperature
        return np.asarray(np.exp(logits - logsumexp(logits, axis=1, keepdims=True)))


def _lowest_of_cuts(gains: Array) -> tuple[Array, float, Array]:
    """Weights [I] that minimise the largest of gains @ weights, that value, and each cut's share in it [K]. [K, I]"""
    cuts, limits = gains.shape
    solution = linprog(
        [*np.zeros(limits), 1.0],
        A_ub=np.column_stack([gains, -np.ones(cuts)]),
        b_ub=np.zeros(cuts),
        A_eq=[[*np.ones(limits), 0.0]],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * limits + [(None, None)],
    )
    shares = np.maximum(-solution.ineqlin.marginals, 0.0)
    return np.asarray(solution.x[:-1]), float(solution.x[-1]), shares / shares.sum()
