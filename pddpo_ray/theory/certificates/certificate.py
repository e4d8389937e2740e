"""Certificates of limits: bets against "the mean is above the limit", valid at every look.

A value Z in [0, 1] is one number per prompt that was drawn: the measure, averaged over that draw's answers and labels.
Somebody who bets a share c of his money on each draw against a mean of p owns, after t draws,

    E_t(p) = mean_j prod_{i <= t} (1 - c_j Z_i) / (1 - c_j p)

If the mean is p or more, this is at most 1 in expectation whatever happened before, so by Ville's inequality it ever
reaches 1 / level with probability at most `level`: looking after every draw and stopping when it is decided costs
nothing (Waudby-Smith and Ramdas, JRSS-B 2024). E_t grows with p, so the p at which it equals 1 / level is an upper
bound of the mean, valid at all times and for all thresholds at once.

The bets c_j are the best ones against the limit if the truth is RHO[j] times the limit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import logsumexp

from pddpo_ray.records import Array

RHO = (0.02, 0.1, 0.25, 0.4, 0.55, 0.75)
"""Truths that the bets are made for, as shares of the limit."""


def first_certified(values: ArrayLike, limit: float, level: float, *, shaped_for: float | None = None) -> int | None:
    """How many of the values it took until their mean was certified to be below the limit; None: it was not. [n]

    `level` is the probability of a false certificate that is accepted, e.g. 0.05; the values are in the order of
    drawing. Bets that were `shaped_for` one limit answer for every other too, at the same level all together. Raises
    ValueError for a value outside [0, 1] or not a number.
    first_certified([0] * 500, limit=0.01, level=0.05) = 392
    """
    return _first_at_least(log_wealth(_unit_values(values), limit, shaped_for=shaped_for), level)


def upper_bound(values: ArrayLike, limit: float, level: float) -> float:
    """Upper bound of the mean after these values, valid at every time; bets shaped for the limit. [n] -> []

    It holds for every threshold at once: another limit may be read off it. Raises ValueError as `first_certified`.
    """
    array, target = _unit_values(values), _log_target(level)
    bets = bets_below(limit)
    log_gains = np.log1p(-np.outer(bets, array)).sum(axis=1)

    def missing(mean: float) -> float:
        return float(_log_mean(log_gains - array.size * np.log1p(-bets * mean))) - target

    return 1.0 if missing(1.0) <= 0 else float(brentq(missing, 0.0, 1.0))


def first_rejected(values: ArrayLike, limit: float, level: float, *, shaped_for: float | None = None) -> int | None:
    """How many values it took until their mean was shown to be above the limit; None: it was not. [n]"""
    return _first_at_least(log_wealth(_unit_values(values), limit, above=True, shaped_for=shaped_for), level)


def lower_bound(values: ArrayLike, limit: float, level: float) -> float:
    """Lower bound of the mean after these values, valid at every time; bets shaped for the limit. [n] -> []

    The mirror image of `upper_bound`: bets on 1 - Z. A mean below it by chance has probability at most `level`.
    """
    array, target = 1.0 - _unit_values(values), _log_target(level)
    bets = bets_above(limit)
    log_gains = np.log1p(-np.outer(bets, array)).sum(axis=1)

    def missing(mean: float) -> float:
        return float(_log_mean(log_gains - array.size * np.log1p(-bets * (1.0 - mean)))) - target

    return 0.0 if missing(0.0) <= 0 else float(brentq(missing, 0.0, 1.0))


def log_wealth(values: Array, limit: float, *, above: bool = False, shaped_for: float | None = None) -> Array:
    """log E_t(limit) after each value, of bets on a mean below the limit (or `above` it). [..., n] -> [..., n]

    The bets have the best shape for the limit, or for another one: `shaped_for`.
    """
    shape = _limit(limit) if shaped_for is None else shaped_for
    if above:
        bets, array, mean = bets_above(shape), 1.0 - values, 1.0 - _limit(limit)
    else:
        bets, array, mean = bets_below(shape), values, _limit(limit)
    gains = np.stack([np.log1p(-bet * array) - math.log1p(-bet * mean) for bet in bets])
    return _log_mean(np.cumsum(gains, axis=-1))


def bets_below(limit: float) -> Array:
    """c_j = (1 - rho_j) / (1 - rho_j d): the bets that grow fastest if the truth is rho_j d. [J]

    Raises ValueError for a limit outside (0, 1): no number of draws can show a rate of nothing.
    """
    rho = np.asarray(RHO)
    return (1.0 - rho) / (1.0 - rho * _limit(limit))


def bets_above(limit: float) -> Array:
    """The same on 1 - Z, for truths of d / rho_j: those below 1, or one between d and 1 if there is none. [J]

    A bet made for a truth of 1 would stake everything on Z = 1, so truths end at 0.99.
    """
    times = 1.0 / np.asarray(RHO)
    times = times[times * _limit(limit) <= 0.99]
    if not times.size:
        times = np.asarray([(1.0 + 1.0 / limit) / 2.0])
    return (times - 1.0) / (times * (1.0 - limit))


def candidate_level(delta: float, number: int) -> float:
    """Level of the k-th candidate of a run, k = 1, 2, ...: 6 delta / (pi^2 k^2), which sum to delta.

    A candidate is a policy that is put to the test. All that are ever tested share delta, however many there are.
    """
    if number < 1:
        raise ValueError(f"candidates are counted from 1, got {number}")
    return 6.0 * delta / (math.pi * number) ** 2


def _first_at_least(path: Array, level: float) -> int | None:
    reached = np.flatnonzero(path >= _log_target(level))
    return int(reached[0]) + 1 if reached.size else None


def _log_mean(logs: Array) -> Array:
    """log of the mean over bets. [J, ...] -> [...]"""
    return np.asarray(logsumexp(logs, axis=0) - math.log(len(logs)))


def _log_target(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is the probability of a false certificate, between 0 and 1; got {level}")
    return -math.log(level)


def _limit(limit: float) -> float:
    if not 0.0 < limit < 1.0:
        raise ValueError(f"a limit that draws can certify lies between 0 and 1; got {limit}")
    return limit


def _unit_values(values: ArrayLike) -> Array:
    """Values as an array [n]; raises ValueError with the first that is no number in [0, 1]."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"values must be a list of numbers, one per draw; got {array.ndim} dimensions")
    wrong = np.flatnonzero(~((array >= 0.0) & (array <= 1.0)))
    if wrong.size:
        raise ValueError(f"values must lie in [0, 1]; value {wrong[0]} is {array[wrong[0]]}")
    return array
