"""Two sides of a benchmark measured in one go, as a ratio with its spread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ratio:
    """Seconds of the peer over ours: above 1 we are faster. `spread` is the interquartile range."""

    id: str
    what: str
    ratio: float
    spread: tuple[float, float]
    repeats: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def interleaved(
    name: str, what: str, peer: Callable[[], object], ours: Callable[[], object], repeats: int = 5
) -> Ratio:
    """CPU seconds in the order peer, ours, ours, peer, so that a drift of the machine hits both sides alike."""
    ratios = []
    for _ in range(repeats):
        first, second, third, fourth = (_seconds(side) for side in (peer, ours, ours, peer))
        ratios.append((first + fourth) / (second + third))
    low, median, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return Ratio(name, what, float(median), (float(low), float(high)), repeats)


def _seconds(side: Callable[[], object]) -> float:
    began = time.process_time()
    side()
    return time.process_time() - began
