"""Active choice: which of the proposed pairs are worth a person's time (paper.md §15: the same norm as the bonus)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def choose_pairs(
    norms: Callable[[], Array],
    picked: Callable[[int], None],
    count: int,
    *,
    keep: int,
    random_share: float,
    generator: np.random.Generator,
) -> list[int]:
    """Indices of `keep` of `count` pairs, ascending: a random share first, then the most informative one by one.

    `norms()` says how much each pair would teach, given those that `picked(index)` was told of: after every pick, so
    that a second pair in the same direction is worth less. The random share is kept whatever the norms say: without it
    nobody would notice where the features are blind.
    """
    if not 0 < random_share <= 1:
        raise ValueError(f"random_share must be in (0, 1], got {random_share}")
    if keep >= count:
        return list(range(count))
    drawn = generator.choice(count, size=min(keep, math.ceil(random_share * keep)), replace=False)
    chosen = [int(index) for index in drawn]
    for index in chosen:
        picked(index)
    while len(chosen) < keep:
        values = np.array(norms(), dtype=np.float64)
        values[chosen] = -np.inf
        best = int(values.argmax())
        chosen.append(best)
        picked(best)
    return sorted(chosen)
