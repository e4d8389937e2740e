"""What optimism buys where it only collects and a policy without bonus is the output (paper.md §16).

s = r - lambda c, s^ its fit, |s - s^| <= b up to a constant of each prompt, J(p; v) = E_p v - beta KL(p || reference)
pi = argmax J(.; s^) is the output,  mu = argmax J(.; s^ + b) collects,  pi* is any policy

J(pi*; s) - J(pi; s) <= E_pi b + E_mu b <= 2 E_mu b
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from pddpo_ray.records import Array


@dataclass(frozen=True, eq=False)
class SplitRoles:
    """Both sides of the two inequalities, in units of the score. All [...]."""

    gap: Array
    """max over policies of J(.; s), less J(pi; s)."""
    under_policy: Array
    """E_pi b."""
    under_collector: Array
    """E_mu b."""

    @property
    def share_of_bound(self) -> Array:
        """gap / (2 E_mu b): at most 1 where b is valid; 0 where both are 0. [...]"""
        return _share(self.gap, 2.0 * self.under_collector)

    @property
    def share_of_collector(self) -> Array:
        """E_pi b / E_mu b: at most 1 for any b; 0 where both are 0. [...]"""
        return _share(self.under_policy, self.under_collector)


def split_roles(
    prior: Array, reference: Array, score: Array, estimate: Array, bonus: Array, beta: float | Array
) -> SplitRoles:
    """Exact sums over finitely many answers.

    prior [..., X]; reference, score s, estimate s^, bonus b [..., X, Y]; beta a number or [..., 1, 1]. Nothing is
    checked: `valid` says whether b is what the first inequality asks for.
    """
    with np.errstate(divide="ignore"):
        base = np.log(reference)
    policy, collector = _tilted(base, estimate, beta), _tilted(base, estimate + bonus, beta)
    # J(pi; s) = J(pi; s^) + E_pi (s - s^), so that no KL has to be taken
    best, fitted = (logsumexp(base + values / beta, axis=-1) for values in (score, estimate))
    weight = np.asarray(beta)[..., 0] if np.ndim(beta) else np.asarray(beta)
    gaps = weight * (best - fitted) - _mean(policy, score - estimate)
    return SplitRoles(
        np.sum(prior * gaps, axis=-1),
        np.sum(prior * _mean(policy, bonus), axis=-1),
        np.sum(prior * _mean(collector, bonus), axis=-1),
    )


def valid(score: Array, estimate: Array, bonus: Array, centre: Array) -> Array:
    """Largest |s - s^ - its mean under `centre`| - b of a prompt: the bonus is valid where it is at most 0.

    All [..., X, Y] -> [..., X]. `centre` is the distribution on which the bonus's features are centred.
    """
    error = score - estimate
    return np.asarray((np.abs(error - _mean(centre, error)[..., None]) - bonus).max(axis=-1))


def _tilted(base: Array, values: Array, beta: float | Array) -> Array:
    logits = base + values / beta
    return np.asarray(np.exp(logits - logsumexp(logits, axis=-1, keepdims=True)))


def _mean(policy: Array, values: Array) -> Array:
    return np.asarray(np.sum(policy * values, axis=-1))


def _share(part: Array, whole: Array) -> Array:
    """0 / 0 is 0; rounding of a part by 1e-12 counts as nothing."""
    part = np.where(np.abs(part) <= 1e-12, 0.0, part)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(part == 0.0, 0.0, part / whole)
