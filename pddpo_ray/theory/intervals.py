"""Means, rates and their intervals. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import betaincinv, stdtrit

from pddpo_ray.records import Array


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; `count` is the number of independent observations (prompts) behind it.

    Without stated bounds a mean has no interval: a value that was not seen yet may be anywhere.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    standard_error: float | None = None
    """Spread of the mean over samples of this size; no interval follows from it. None for one observation."""


def mean_interval(
    values: ArrayLike,
    groups: Sequence[Hashable] | None = None,
    bounds: tuple[float, float] | None = None,
    level: float = 0.95,
) -> Estimate | None:
    """Mean, its standard error and, within stated bounds, the interval of `bounded_interval`; None without values. [n]

    Values of one group (answers to one prompt) are averaged first: they are not independent of each other. Raises
    ValueError for a value outside the bounds.
    """
    array = np.asarray(values, dtype=np.float64)
    if groups is not None:
        array = _group_means(array, groups)
    if array.size == 0:
        return None
    error = float(array.std(ddof=1) / np.sqrt(array.size)) if array.size > 1 else None
    low = high = None
    if bounds is not None:
        low, high = bounded_interval(array, *bounds, level)
    return Estimate(float(array.mean()), low, high, int(array.size), error)


def bounded_interval(values: ArrayLike, low: float, high: float, level: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of independent values in [low, high], for one look. [n] -> ends

    Values at the two ends alone are trials: Clopper-Pearson. Others are bet on, as certificates are, with stakes that
    suit the mean and the variance of the values before (Waudby-Smith and Ramdas 2024, hedged capital). Raises
    ValueError for a value outside the bounds.
    """
    array = np.asarray(values, dtype=np.float64)
    if not low < high or not ((array >= low) & (array <= high)).all():
        raise ValueError(f"values must lie within the stated bounds [{low:g}, {high:g}]")
    units = np.clip((array - low) / (high - low), 0.0, 1.0)
    if np.isin(units, (0.0, 1.0)).all():
        ends = clopper_pearson(float(units.sum()), units.size, level)
    else:
        tail = (1.0 - level) / 2.0
        ends = _low_by_bets(units, tail), 1.0 - _low_by_bets(1.0 - units, tail)
    return low + (high - low) * ends[0], low + (high - low) * ends[1]


MOST_STAKE = 0.75
"""Largest share staked of what can be lost, so that no single value ruins the bets."""


def _low_by_bets(units: Array, tail: float) -> float:
    """Lower bound of the mean of values in [0, 1]: what smaller means lose by bets on "the mean is higher". [n] -> []

    The stake on value i is sqrt(2 ln(1/tail) / (n s)), s the variance of the values before it.
    """
    counts = np.arange(1, units.size + 1)
    means = (0.5 + np.cumsum(units)) / (counts + 1)
    spreads = (0.25 + np.cumsum((units - means) ** 2)) / (counts + 1)
    past_spreads = np.concatenate([[0.25], spreads[:-1]])
    stakes = np.sqrt(2.0 * math.log(1.0 / tail) / (units.size * past_spreads))

    def missing(mean: float) -> float:
        gains = np.minimum(stakes, MOST_STAKE / mean) * (units - mean)
        return float(np.log1p(gains).sum()) + math.log(tail)

    lowest = 1e-12
    return 0.0 if missing(lowest) <= 0.0 else float(brentq(missing, lowest, 1.0))


def student_half_width(standard_error: float, count: int, level: float = 0.95) -> float:
    """Half the two-sided t-interval of a mean of `count` independent values, count >= 2."""
    return float(stdtrit(count - 1, 0.5 + level / 2)) * standard_error


def clopper_pearson(successes: float, count: float, level: float = 0.95) -> tuple[float, float]:
    """Exact binomial interval of a rate; it covers at least `level` at every rate and count.

    `successes` need not be whole: a sum of `count` values in [0, 1] is spread less than that of right-or-wrong ones.
    """
    tail = (1.0 - level) / 2.0
    return binomial_low(successes, count, tail), binomial_high(successes, count, tail)


def binomial_low(successes: float, count: float, tail: float) -> float:
    """One-sided exact lower bound of a rate: that number of successes or more has probability `tail` there."""
    return 0.0 if successes <= 0 else float(betaincinv(successes, count - successes + 1, tail))


def binomial_high(successes: float, count: float, tail: float) -> float:
    """One-sided exact upper bound of a rate: that number of successes or fewer has probability `tail` there."""
    return 1.0 if successes >= count else float(betaincinv(successes + 1, count - successes, 1.0 - tail))


LARGEST_STAKE = 0.9


def bounded_ends(
    mean: float, standard_error: float, count: int, bounds: tuple[float, float], level: float = 0.95
) -> tuple[float, float]:
    """Interval of a mean for one look, from what is kept of `count` >= 2 independent values within stated bounds.

    Bets with stakes b that are fixed beforehand win at least, on a value x in [0, 1] against a mean of p (Fan, Grama
    and Liu 2015, Lemma 4.1),

        log(1 + b (x - p))  >=  b (x - p) - psi(b) (x - p)^2,      psi(b) = -log(1 - b) - b,

    so mean and variance say what they have won against each p; money is split evenly among the stakes. Values that
    were not seen yet may lie at either bound: the interval holds however skewed they are.
    """
    width = bounds[1] - bounds[0]
    squares = (standard_error / width) ** 2 * count * (count - 1)
    half = width * _distance_by_bets(squares, count, (1.0 - level) / 2.0)
    return max(bounds[0], mean - half), min(bounds[1], mean + half)


def _distance_by_bets(squares: float, count: int, tail: float) -> float:
    """How far from the mean of `count` values in [0, 1] a number lies that bets refute, at most 1: the least d with
    n b d - psi(b) (squares + n d^2) >= log(J / tail) for one of the J stakes. `squares`: sum of (x - mean)^2."""
    # the smallest stake is the best one for the largest variance, 1/4
    smallest = min(LARGEST_STAKE, math.sqrt(8.0 * math.log(1.0 / tail) / count))
    stakes = np.geomspace(LARGEST_STAKE, smallest, 1 + math.ceil(math.log2(LARGEST_STAKE / smallest)))
    losses = -np.log1p(-stakes) - stakes
    room = (count * stakes) ** 2 - 4.0 * count * losses * (losses * squares + math.log(stakes.size / tail))
    has_root = room >= 0.0
    distances = (count * stakes - np.sqrt(room, where=has_root, out=np.zeros_like(room))) / (2.0 * count * losses)
    return float(distances[has_root].min(initial=1.0))


def rate_interval(successes: int, count: int) -> Estimate | None:
    """Share of successes with its exact binomial interval; None without trials. rate_interval(0, 10) = 0, to 0.308"""
    if count == 0:
        return None
    share = successes / count
    error = math.sqrt(share * (1.0 - share) / (count - 1)) if count > 1 else None
    return Estimate(share, *clopper_pearson(successes, count), count, error)


def _group_means(values: Array, groups: Sequence[Hashable]) -> Array:
    by_group: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        by_group.setdefault(group, []).append(float(value))
    return np.array([np.mean(members) for members in by_group.values()])
