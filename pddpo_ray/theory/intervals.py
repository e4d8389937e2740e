"""Means, rates and their intervals. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta
from scipy.stats import t as student

from pddpo_ray.records import Array


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; `count` is the number of independent observations (prompts) behind it.

    With fewer than two of them the interval is not known.
    """

    value: float
    low: float | None
    high: float | None
    count: int


def mean_interval(values: ArrayLike, groups: Sequence[Hashable] | None = None) -> Estimate | None:
    """Mean and t-interval; None without values. [n]

    Values of one group (answers to one prompt) are averaged first: they are not independent of each other.
    mean_interval([1, 2, 3]) = 2, from -0.484 to 4.484
    """
    array = np.asarray(values, dtype=np.float64)
    if groups is not None:
        array = _group_means(array, groups)
    if array.size == 0:
        return None
    if array.size == 1:
        return Estimate(float(array[0]), None, None, 1)
    half = student_half_width(float(array.std(ddof=1) / np.sqrt(array.size)), array.size)
    mean = float(array.mean())
    return Estimate(mean, mean - half, mean + half, int(array.size))


def student_half_width(standard_error: float, count: int, level: float = 0.95) -> float:
    """Half the two-sided t-interval of a mean of `count` independent values, count >= 2."""
    return float(student.ppf(0.5 + level / 2, count - 1)) * standard_error


def clopper_pearson(successes: float, count: float, level: float = 0.95) -> tuple[float, float]:
    """Exact binomial interval of a rate; it covers at least `level` at every rate and count.

    `successes` need not be whole: a sum of `count` values in [0, 1] is spread less than that of right-or-wrong ones.
    """
    tail = (1.0 - level) / 2.0
    return binomial_low(successes, count, tail), binomial_high(successes, count, tail)


def binomial_low(successes: float, count: float, tail: float) -> float:
    """One-sided exact lower bound of a rate: so many successes or more have probability `tail` there."""
    return 0.0 if successes <= 0 else float(beta.ppf(tail, successes, count - successes + 1))


def binomial_high(successes: float, count: float, tail: float) -> float:
    """One-sided exact upper bound of a rate: so many successes or fewer have probability `tail` there."""
    return 1.0 if successes >= count else float(beta.ppf(1.0 - tail, successes + 1, count - successes))


def empirical_bernstein(values: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of values in [0, 1] for one look (Maurer and Pontil 2009). [n], n >= 2

    mean +- sqrt(2 V ln(4/alpha) / n) + 7 ln(4/alpha) / (3 (n - 1)), V the sample variance. Shown beside certificates.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size < 2:
        return 0.0, 1.0
    log_term = math.log(4.0 / (1.0 - level))
    spread = math.sqrt(2.0 * float(array.var(ddof=1)) * log_term / array.size)
    half = spread + 7.0 * log_term / (3.0 * (array.size - 1))
    return max(0.0, float(array.mean()) - half), min(1.0, float(array.mean()) + half)


def rate_interval(successes: int, count: int) -> Estimate | None:
    """Share of successes with its exact binomial interval; None without trials. rate_interval(0, 10) = 0, to 0.308"""
    if count == 0:
        return None
    return Estimate(successes / count, *clopper_pearson(successes, count), count)


def _group_means(values: Array, groups: Sequence[Hashable]) -> Array:
    by_group: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        by_group.setdefault(group, []).append(float(value))
    return np.array([np.mean(members) for members in by_group.values()])
