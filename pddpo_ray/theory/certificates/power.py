"""How many draws a certificate takes: exact chances of the betting test for answers that are right or wrong.

After t draws of which s are failures the wealth depends on t and s alone. So for every t there is a largest number of
failures with which the test certifies, and the chance to be certified by then follows by summing over s, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtri

from pddpo_ray.records import Array
from pddpo_ray.theory.certificates.certificate import bets_below

MOST_DRAWS = 200_000


def draws_needed(limit: float, rate: float, level: float, power: float = 0.8, most: int = MOST_DRAWS) -> int | None:
    """Draws after which a true `rate` is certified to be below `limit` with probability `power`; None: over `most`.

    draws_needed(0.01, 0.0025, 0.05) = 1230. No method needs fewer than log(level) / log(1 - limit).
    """
    if not 0.0 <= rate < limit or _sure_loss(limit, rate):
        return None
    alive = np.ones(1)
    certified, allowed = 0.0, _AllowedFailures(limit, level)
    for draw in range(1, most + 1):
        alive = _after_a_draw(alive, rate)
        edge = allowed.failures(draw)
        if edge >= 0:
            certified += float(alive[: edge + 1].sum())
            alive[: edge + 1] = 0.0
            if certified >= power:
                return draw
    return None


def allowed_failures(limit: float, level: float, draws: int) -> NDArray[np.int64]:
    """The most failures with which the test certifies after each of 1, 2, ..., n draws; -1: not even without any."""
    allowed = _AllowedFailures(limit, level)
    return np.fromiter((allowed.failures(draw) for draw in range(1, draws + 1)), dtype=np.int64, count=draws)


def certified_rate(limit: float, draws: float, level: float, spread: float = math.inf) -> float:
    """The mean of the draws whose upper bound is just the limit; 0 where none is small enough.

    Draws lie in [0, 1] with at most this standard deviation; those that are right or wrong spread most.
    """
    bets = bets_below(limit)

    def missing(mean: float) -> float:
        share, value = worst_law(mean, spread)
        growth = share * np.log1p(-bets) + (1.0 - share) * np.log1p(-bets * value) - np.log1p(-bets * limit)
        return float(logsumexp(draws * growth)) - math.log(len(bets)) + math.log(level)

    return 0.0 if missing(0.0) <= 0.0 else float(brentq(missing, 0.0, limit))


def likely_rate(limit: float, draws: float, level: float, power: float = 0.8, spread: float = math.inf) -> float:
    """A true mean that this number of draws certifies with a probability of about `power`, or more; 0 where there is
    none.

    Of draws with the mean r the sample's is below certified_rate with that probability, by the normal law.
    A policy whose mean is the certified one itself fails in half of its tests.
    """
    certified, quantile = certified_rate(limit, draws, level, spread), float(ndtri(power))

    def missing(mean: float) -> float:
        return mean + quantile * min(math.sqrt(mean * (1.0 - mean)), spread) / math.sqrt(draws) - certified

    return 0.0 if certified <= 0.0 else float(brentq(missing, 0.0, certified))


@dataclass(frozen=True)
class ComingTest:
    """A test of a limit that a certificate will make."""

    limit: float
    """Where the limit lies between the lowest and the highest cost of a draw, in (0, 1)."""
    width: float
    """Highest less lowest, in the unit of the cost."""
    draws: int
    level: float
    varies: bool
    """Whether draws may differ less than the test has to reckon with: those of a rate are right or wrong."""

    def margin(self, spread: float = math.inf) -> float:
        """How far below the limit a mean must be for four such tests of five to certify it, where draws that may vary
        have at most this standard deviation; both in the unit of the cost. The half-width of the test itself would be
        half of the tests.
        """
        rate = likely_rate(self.limit, self.draws, self.level, spread=spread / self.width if self.varies else math.inf)
        return self.width * (self.limit - rate)


def worst_law(mean: float, spread: float) -> tuple[float, float]:
    """Of all laws on [0, 1] with this mean and standard deviation, the one on which every bet gains least: the share
    that is 1, and the value of the rest; 0 where they cannot spread so far.

    The gain log(1 - c z) has a negative third derivative in z, so its mean is least with the largest value at 1.
    """
    variance = min(spread**2, mean * (1.0 - mean))
    return variance / (variance + (1.0 - mean) ** 2), mean - variance / (1.0 - mean)


def fewest_draws(limit: float, level: float) -> int:
    """Draws without a single failure below which no method certifies a rate. fewest_draws(0.02, 0.05) = 149"""
    return math.ceil(math.log(level) / math.log1p(-limit))


def _sure_loss(limit: float, rate: float) -> bool:
    """Whether every bet loses in the long run at this rate, so that waiting does not help."""
    bets = bets_below(limit)
    growth = rate * np.log1p(-bets) - np.log1p(-bets * limit)
    return bool(growth.max() <= 0.0)


def _after_a_draw(alive: Array, rate: float) -> Array:
    """Chances by number of failures after one more draw; those too rare to matter are dropped at the far end."""
    grown = np.zeros(alive.size + 1)
    grown[:-1] = alive * (1.0 - rate)
    grown[1:] += alive * rate
    return grown[:-1] if grown[-1] < 1e-15 else grown


class _AllowedFailures:
    """Largest number of failures with which the test certifies after t draws; it never falls with t."""

    def __init__(self, limit: float, level: float) -> None:
        bets = bets_below(limit)
        self._right, self._wrong = -np.log1p(-bets * limit), np.log1p(-bets)
        self._log_target = math.log(len(bets)) - math.log(level)
        self._edge = -1

    def failures(self, draws: int) -> int:
        """-1: not even without a failure."""
        while self._certifies(draws, self._edge + 1):
            self._edge += 1
        return self._edge

    def _certifies(self, draws: int, failures: int) -> bool:
        gained = draws * self._right + failures * self._wrong
        top = float(gained.max())
        return top + math.log(float(np.exp(gained - top).sum())) >= self._log_target
