"""The alarm after a release: bets that the mean of served answers is above the limit, started anew at every answer.

A bet that starts at the t-th measured answer gets the weight 1 / (t (t + 1)); all of them together own

    A_t = mean_j R_t,j       R_t,j = (R_{t-1,j} + 1 / (t (t + 1))) (1 + b_j (Z_t - d))

While every measured answer has, given the past, an expected value of at most d, A with the weights not yet given out is
a supermartingale that starts at 1, so it ever reaches 1 / level with probability at most `level`. A rise after a long
quiet time is found with a delay that grows with the logarithm of that time: what earlier bets lost is not owed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pddpo_ray.theory.certificates.certificate import bets_above


@dataclass(frozen=True)
class Alarm:
    """State after `answers` measured answers; `wealth` has one number per bet. Unmeasured answers are left out."""

    limit: float
    level: float
    answers: int = 0
    wealth: tuple[float, ...] = ()
    rang_at: int | None = None
    """Number of the answer at which it rang; it stays on."""

    def __post_init__(self) -> None:
        if not 0.0 < self.level < 1.0:
            raise ValueError(f"level is the probability of a false alarm, between 0 and 1; got {self.level}")
        if not self.wealth:
            object.__setattr__(self, "wealth", (0.0,) * len(bets_above(self.limit)))

    @property
    def evidence(self) -> float:
        """A_t; the alarm rings at 1 / level."""
        return float(np.mean(self.wealth))

    def after(self, value: float) -> Alarm:
        """The state after one more measured value in [0, 1]. Raises ValueError for another number."""
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"a measured value lies in [0, 1], got {value}")
        number = self.answers + 1
        bets = bets_above(self.limit)
        # (1 - c (1 - Z)) / (1 - c (1 - d)) = 1 + b (Z - d)
        gain = (1.0 - bets * (1.0 - value)) / (1.0 - bets * (1.0 - self.limit))
        wealth = (np.asarray(self.wealth) + 1.0 / (number * (number + 1))) * gain
        # far beyond the alarm it need not grow further, or years of it would overflow
        wealth = np.minimum(wealth, 1e300)
        rings = float(wealth.mean()) >= 1.0 / self.level
        rang_at = self.rang_at if self.rang_at is not None else (number if rings else None)
        return replace(self, answers=number, wealth=tuple(map(float, wealth)), rang_at=rang_at)

    @property
    def rings(self) -> bool:
        return self.rang_at is not None
