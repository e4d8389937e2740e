"""What is drawn, as numbers Z in [0, 1] that certificates bet on, one number per prompt drawn.

| measured                            | Z                                             | limit of E[Z]         |
|-------------------------------------|-----------------------------------------------|-----------------------|
| a rate                              | mean over the draw's answers and their labels | d                     |
| a mean with stated bounds           | (value - low) / (high - low)                  | scaled the same way   |
| a machine, a share q also by people | f + (xi/q)(y - f), scaled from [1 - 1/q, 1/q] | scaled the same way   |
| a logit, M labels an answer         | (clipped logit + C) / 2C                      | scaled after d - bias |

A draw without a number (failed, abstained, or its label is still out) is NaN here; `counted` makes it the worst.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from pddpo_ray.records import Array
from pddpo_ray.theory.certificates.certificate import log_wealth, lower_bound, upper_bound
from pddpo_ray.theory.estimates.cost_estimate import corrected_by_people

UPPER_WORST, LOWER_WORST = 1.0, 0.0
"""What a draw without a number counts as: in an upper bound, and in a lower one."""


def counted(values: ArrayLike, worst: float) -> Array:
    """Draws with `worst` in place of NaN: a source cannot choose what is counted by failing. [n] -> [n]

    The same rule holds while a label is out: wealth only falls by it, so a look at that time stays valid.
    """
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isnan(array), worst, array)


def scaled(values: ArrayLike, low: float, high: float) -> Array:
    """Values from stated bounds to [0, 1]; NaN stays. Raises ValueError for a value outside them. [...] -> [...]"""
    if not low < high:
        raise ValueError(f"bounds are [low, high] with low below high, got [{low:g}, {high:g}]")
    array = np.asarray(values, dtype=np.float64)
    outside = array[(array < low) | (array > high)]
    if outside.size:
        raise ValueError(f"{outside.flat[0]:g} lies outside the stated bounds [{low:g}, {high:g}]")
    # rounding may carry a value a last digit over the end
    return np.clip((array - low) / (high - low), 0.0, 1.0)


def with_people(machine: ArrayLike, people: ArrayLike, is_asked: ArrayLike, share: float) -> Array:
    """`corrected_by_people` scaled to [0, 1]. `is_asked` are independent coins with probability `share` = q, tossed
    apart from both values. [n] x3 -> [n]"""
    low, high = with_people_range(share)
    return scaled(corrected_by_people(machine, people, is_asked, share), low, high)


def with_people_range(share: float) -> tuple[float, float]:
    """Where f + (xi/q)(y - f) lies for f, y in [0, 1] and q = `share`. -> low, high"""
    if not 0.0 < share <= 1.0:
        raise ValueError(f"the share that people are asked about lies in (0, 1], got {share}")
    return 1.0 - 1.0 / share, 1.0 / share


def share_at_clip(unsafe_shares: ArrayLike, cost_max: float) -> float:
    """Share of answers whose estimate sits at an end of [-C, C]; much of it says that C may be too small. [N] -> []"""
    shares = np.asarray(unsafe_shares, dtype=np.float64)
    outside = (shares <= expit(-cost_max)) | (shares >= expit(cost_max))
    return float(outside.mean()) if shares.size else 0.0


def mixture_log_wealth(
    rounds: ArrayLike, limit: float, *, above: bool = False, shaped_for: float | None = None
) -> Array:
    """log E after each round, of bets on the mean over rounds of E[Z under the round's policy]. [..., K, n] -> [..., K]

    prod (1 - c Z) / (1 - c mu_k) is a martingale although a round's policy depends on the draws before it, and where
    the mean of mu_1..mu_K is p or more, prod_k (1 - c mu_k) <= (1 - c p)^K because the logarithm is concave. It needs
    equally many draws in every round, each independent of the others given the rounds before, and looks at ends of
    rounds only. A tail (rounds j..K) is a mixture of its own. Bets as in `certificate.log_wealth`.
    """
    table = _rectangles(rounds)
    draws = table.reshape(*table.shape[:-2], -1)
    return log_wealth(draws, limit, above=above, shaped_for=shaped_for)[..., table.shape[-1] - 1 :: table.shape[-1]]


def mixture_decided(
    rounds: ArrayLike, limit: float, level: float, *, above: bool = False, shaped_for: float | None = None
) -> bool:
    """Whether the draws of rounds 1..K show, at the end of round K, that their mean is below the limit (or `above`).

    What an earlier round showed was about fewer rounds, and does not count. [K, n] -> []
    """
    return bool(mixture_log_wealth(rounds, limit, above=above, shaped_for=shaped_for)[-1] >= -math.log(level))


def mixture_upper_bound(rounds: ArrayLike, limit: float, level: float) -> float:
    """Upper bound of the mean over rounds of E[Z], valid at the end of every round. [K, n] -> []"""
    return upper_bound(_rectangles(rounds).ravel(), limit, level)


def mixture_lower_bound(rounds: ArrayLike, limit: float, level: float) -> float:
    """Lower bound of the same mean, likewise. [K, n] -> []"""
    return lower_bound(_rectangles(rounds).ravel(), limit, level)


def _rectangles(rounds: ArrayLike) -> Array:
    try:
        table = np.asarray(rounds, dtype=np.float64)
    except ValueError as error:
        raise ValueError("a mixture's certificate needs equally many draws in every round") from error
    if table.ndim < 2 or table.size == 0:
        raise ValueError(f"a mixture's draws are [rounds, draws of a round], got shape {table.shape}")
    return table
