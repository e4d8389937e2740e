"""How much of the past a fit sees: what keeps the work of a run linear in its rounds, not quadratic.

A fit that goes over all pairs in every round costs as much as all rounds before it together. Most refits of a recipe
(`config.trainer`, `parts.fitting.older_rows`) see the new pairs and a fixed number of older ones, drawn evenly and
weighted by what they stand for, so that the expected loss is that of the union; they differ in when the whole union is
seen again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pddpo_ray.records import PairRow


def is_power(round_: int, factor: float) -> bool:
    """Whether a power of the factor lies in (round - 1, round].

    Where such rounds see the union, all of them together cost less than f/(f-1) times the last one.
    """
    if round_ <= 1:
        return True
    exponent = math.floor(math.log(round_) / math.log(factor) + 1e-9)
    return factor**exponent > round_ - 1 + 1e-9


def full_rounds(growth: float, last: int, logdets: Mapping[int, float]) -> list[int]:
    """Rounds up to `last` in which the union is seen, because the design's determinant grew by 1 + `growth` since.

    A round knows the determinants of the rounds before it. With d features and n pairs that happens at most
    d log2(1 + n) times at growth 1 (rare switching).
    """
    rounds, last_logdet = [], -math.inf
    for number in range(1, last + 1):
        logdet = logdets.get(number - 1)
        if logdet is None or logdet - last_logdet >= math.log1p(growth):
            rounds.append(number)
            last_logdet = -math.inf if logdet is None else logdet
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
    places = [index for index, row in enumerate(rows) if row.round == newest or index in chosen]
    weighted = tuple(
        replace(rows[index], weight=rows[index].weight * factor) if index in chosen else rows[index] for index in places
    )
    return weighted, tuple(margins[index] for index in places) if margins else ()
