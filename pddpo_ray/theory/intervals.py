"""Means, rates and their intervals. Pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from scipy.stats import t as student

Array = NDArray[np.float64]


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
    half = float(student.ppf(0.975, array.size - 1) * array.std(ddof=1) / np.sqrt(array.size))
    mean = float(array.mean())
    return Estimate(mean, mean - half, mean + half, int(array.size))


def rate_interval(successes: int, count: int) -> Estimate | None:
    """Share of successes with Wilson's interval, which is honest at 0 and 1 too; None without trials.

    rate_interval(0, 10) = 0, from 0 to 0.278
    """
    if count == 0:
        return None
    z = float(norm.ppf(0.975))
    share, scale = successes / count, 1 + z**2 / count
    centre = (share + z**2 / (2 * count)) / scale
    half = z / scale * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    # at the ends the exact limits are 0 and 1; rounding would leave them a little off
    low = 0.0 if successes == 0 else float(centre - half)
    high = 1.0 if successes == count else float(centre + half)
    return Estimate(share, low, high, count)


def _group_means(values: Array, groups: Sequence[Hashable]) -> Array:
    by_group: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        by_group.setdefault(group, []).append(float(value))
    return np.array([np.mean(members) for members in by_group.values()], dtype=np.float64)
