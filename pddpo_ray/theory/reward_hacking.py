"""The alarm that a run's own reward rises while one that it does not learn from falls (overoptimisation).

On prompt i, d_i is the mean score of a policy's answers less that of an earlier policy's. The sign test asks whether
more prompts rise than fall by chance: of m prompts that moved, k or more went one way with probability
P(Binomial(m, 1/2) >= k). The alarm needs both: the own reward rose and the held-out one fell. As it must be wrong
about at least one of the two to be false, its p-value is the larger one (Berger 1982, intersection-union test).

Round k looks with a share 1 / (k (k + 1)) of the level; half of that is for the comparison with the reference, half for
those with the rounds before. The shares of all rounds sum to less than 1, so that, however many rounds there are, the
probability that a run in which the claim never holds is called is at most the level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pddpo_ray.records import Array
from pddpo_ray.theory.agreement import TIE


@dataclass(frozen=True)
class Divergence:
    """One comparison: of `round` with `since` (0 is the reference), on `prompts` prompts."""

    round: int
    since: int
    rose: int
    """Prompts on which the run's own reward rose."""
    fell: int
    """Prompts on which the held-out reward fell."""
    prompts: int
    p_value: float
    level: float
    """What the p-value is compared with: this comparison's share of the alarm's level."""

    @property
    def rings(self) -> bool:
        return self.p_value <= self.level

    def __str__(self) -> str:
        since = "the reference" if self.since == 0 else f"round {self.since}"
        return (
            f"since {since} the run's own reward rose on {self.rose} of {self.prompts} prompts and the held-out reward"
            f" fell on {self.fell} (p {self.p_value:.2g}, alarm at {self.level:.2g})"
        )


def share_of_look(round_: int, since: int) -> float:
    """Share of the level for the comparison of a round with an earlier one (0: the reference).

    share_of_look(1, 0) = 1/2, share_of_look(2, 0) = share_of_look(2, 1) = 1/12
    """
    whole = 1.0 / (round_ * (round_ + 1))
    if round_ == 1:
        return whole
    return whole / 2.0 if since == 0 else whole / 2.0 / (round_ - 1)


def rise_p_value(differences: ArrayLike) -> float:
    """Of the sign test: P(k or more of the prompts that moved rise by chance); 1 where none moved. [n] -> []"""
    moved = np.asarray(differences, np.float64)
    up, down = int((moved > TIE).sum()), int((moved < -TIE).sum())
    # whole numbers: exact, and a run's looks take no time
    return sum(math.comb(up + down, count) for count in range(up, up + down + 1)) / 2 ** (up + down)


def comparisons_of(proxy: ArrayLike, held_out: ArrayLike, level: float) -> list[Divergence]:
    """The newest round with the reference and with every round before it. proxy, held_out: per policy, the reference
    first, the mean score of its answers to each prompt. [policies, prompts] each"""
    reward, check = np.asarray(proxy, np.float64), np.asarray(held_out, np.float64)
    last = len(reward) - 1
    return [
        _divergence(reward[last] - reward[since], check[last] - check[since], last, since, level)
        for since in range(last)
    ]


def _divergence(gains: Array, held_out: Array, round_: int, since: int, level: float) -> Divergence:
    return Divergence(
        round=round_,
        since=since,
        rose=int((gains > TIE).sum()),
        fell=int((held_out < -TIE).sum()),
        prompts=gains.size,
        p_value=max(rise_p_value(gains), rise_p_value(-held_out)),
        level=level * share_of_look(round_, since),
    )
