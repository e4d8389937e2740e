"""How much of the past a fit sees: what keeps the work of a run linear in its rounds, not quadratic.

A fit that goes over all pairs in every round costs as much as all rounds before it together. Most policies here see the
new pairs and a fixed number of older ones, drawn evenly and weighted by what they stand for, so that the expected loss
is that of the union; they differ in when the whole union is seen again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pddpo_ray.records import PairRow


@dataclass(frozen=True)
class Union:
    """All pairs in every round, from the last round's weights. `cold`: from the base's weights, like a first fit."""

    cold: bool = False


@dataclass(frozen=True)
class Budget:
    """New pairs and at most `rows + per_new * (new pairs)` older ones, from the last round's weights."""

    rows: int = 20_000
    per_new: float = 2.0

    def older(self, new: int) -> int:
        return self.rows + math.ceil(self.per_new * new)


@dataclass(frozen=True)
class Geometric:
    """All pairs in rounds 1, f, f^2, ... (the work stays below f/(f-1) times the last union), a budget in between."""

    factor: float = 2.0
    between: Budget = Budget()


@dataclass(frozen=True)
class Determinant:
    """All pairs when the design matrix's determinant grew by 1 + `growth` since they were last seen; else a budget.

    With d features and n pairs that happens at most d log2(1 + n) times at growth 1 (rare switching).
    """

    growth: float = 1.0
    between: Budget = Budget()


RefitPolicy = Union | Budget | Geometric | Determinant


@dataclass(frozen=True)
class Refit:
    """What one round's fits see: at most `older` pairs of earlier rounds (None: all), from the start or `cold`."""

    older: int | None
    cold: bool = False


def decide(policy: RefitPolicy, round_: int, new: int, logdets: Mapping[int, float]) -> Refit:
    """What the fits of a round see. `new`: pairs of the newest round; `logdets`: log determinant after each round."""
    match policy:
        case Union(cold=cold):
            return Refit(None, cold)
        case Budget():
            return Refit(policy.older(new))
        case Geometric(factor=factor, between=between):
            return Refit(None if _is_power(round_, factor) else between.older(new))
        case Determinant(growth=growth, between=between):
            full = round_ in full_rounds(growth, round_, logdets)
            return Refit(None if full else between.older(new))


def _is_power(round_: int, factor: float) -> bool:
    """Whether a power of the factor lies in (round - 1, round]."""
    if round_ <= 1:
        return True
    exponent = math.floor(math.log(round_) / math.log(factor) + 1e-9)
    return factor**exponent > round_ - 1 + 1e-9


def full_rounds(growth: float, last: int, logdets: Mapping[int, float]) -> list[int]:
    """Rounds up to `last` in which the union is seen. A round knows the determinants of the rounds before it."""
    rounds, seen = [], -math.inf
    for number in range(1, last + 1):
        known = logdets.get(number - 1)
        if known is None or known - seen >= math.log1p(growth):
            rounds.append(number)
            seen = -math.inf if known is None else known
    return rounds


def limit_rows(
    rows: Sequence[PairRow], margins: Sequence[float], budget: int | None, draws: np.random.Generator
) -> tuple[tuple[PairRow, ...], tuple[float, ...]]:
    """All rows of the newest round and at most `budget` older ones, whose weights make up for those left out.

    Margins stay with their rows. The order of rows is kept.
    """
    newest = max((row.round for row in rows), default=0)
    older = [index for index, row in enumerate(rows) if row.round < newest]
    if budget is None or len(older) <= budget:
        return tuple(rows), tuple(margins)
    chosen = {older[index] for index in draws.choice(len(older), budget, replace=False)}
    factor = len(older) / max(budget, 1)
    kept = [index for index, row in enumerate(rows) if row.round == newest or index in chosen]
    weighted = tuple(
        replace(rows[index], weight=rows[index].weight * factor) if index in chosen else rows[index] for index in kept
    )
    return weighted, tuple(margins[index] for index in kept) if margins else ()


def merge_duplicates(
    rows: Sequence[PairRow], margins: Sequence[float]
) -> tuple[tuple[PairRow, ...], tuple[float, ...]]:
    """Rows that say the same of the same two texts become one with the sum of their weights.

    The likelihood is unchanged; pairs that were labelled both ways remain two rows. A merged row counts as its newest.
    Rows with different margins are different.
    """
    merged: dict[tuple[object, ...], PairRow] = {}
    of: dict[tuple[object, ...], float] = {}
    for index, row in enumerate(rows):
        key = (row.prompt, row.chosen, row.rejected, margins[index] if margins else 0.0)
        known = merged.get(key)
        if known is not None:
            row = replace(known, weight=known.weight + row.weight, round=max(known.round, row.round))
        merged[key] = row
        of[key] = margins[index] if margins else 0.0
    return tuple(merged.values()), tuple(of.values()) if margins else ()
