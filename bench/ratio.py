"""Two sides of a benchmark measured in one go, as a ratio with its spread."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

Clock = Callable[[Callable[[], object]], float]
"""Seconds of a call."""


@dataclass(frozen=True)
class Ratio:
    """How many times better ours is: the peer's seconds (or bytes) over ours. `spread` is the interquartile range."""

    id: str
    what: str
    ratio: float
    spread: tuple[float, float]
    repeats: int
    floor: float | None = None
    """What the project set out to reach; missed only if the upper quartile is below it."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Absolute numbers of this machine, for a reader: they say nothing elsewhere."""

    @property
    def met(self) -> bool:
        return self.floor is None or self.spread[1] >= self.floor

    def noting(self, details: Mapping[str, float]) -> Ratio:
        """The same with more details."""
        return replace(self, details={**self.details, **details})

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}

    def as_row(self) -> str:
        """One line of the Markdown table."""
        low, high = self.spread
        floor = "-" if self.floor is None else f"{self.floor:g}"
        found = ", ".join(f"{name} {value:.4g}" for name, value in self.details.items())
        return (
            f"| {self.id} | {self.what} | **{self.ratio:.2f}** ({low:.2f} to {high:.2f}) | {floor} "
            f"| {'-' if self.floor is None else 'yes' if self.met else 'no'} | {found} |"
        )


HEADER = "| id | what | ratio (quartiles) | floor | met | on this machine |\n|---|---|---|---|---|---|"


def assert_same(theirs: float, ours: float, tolerance: float = 1e-4) -> None:
    """Raises RuntimeError if the two sides end at losses that differ: then their times say nothing."""
    if not np.isclose(theirs, ours, rtol=tolerance):
        raise RuntimeError(f"the two sides do not compute the same: last losses {theirs} and {ours}")


def interleaved(
    name: str,
    what: str,
    peer: Callable[[], object],
    ours: Callable[[], object],
    repeats: int = 5,
    *,
    floor: float | None = None,
    unit: tuple[str, float] | None = None,
    peer_share: float = 1.0,
    clock: Clock | None = None,
) -> Ratio:
    """CPU seconds (or another clock's) in the order peer, ours, ours, peer: a drift of the machine hits both alike.

    `unit` names what one call of either side works off and how many, e.g. ("pairs", 48): rates are reported then.
    `peer_share`: part of the work that the peer does in one call, where all of it would take too long.
    """
    pairs = [
        (theirs / peer_share, own)
        for theirs, own in measured(peer, ours, repeats, cpu_seconds if clock is None else clock)
    ]
    details = {}
    if unit is not None:
        what_is_done, amount = unit
        second = "CPU-s" if clock is None else "s"
        details = {
            f"peer {what_is_done}/{second}": amount / float(np.median([peer for peer, _ in pairs])),
            f"ours {what_is_done}/{second}": amount / float(np.median([ours for _, ours in pairs])),
        }
    return of_pairs(name, what, pairs, floor=floor, details=details)


def measured(
    peer: Callable[[], object], ours: Callable[[], object], repeats: int, clock: Clock
) -> list[tuple[float, float]]:
    """Seconds of one call of either side, (peer, ours), in the order peer, ours, ours, peer."""
    pairs = []
    for _ in range(repeats):
        first, second, third, fourth = (clock(side) for side in (peer, ours, ours, peer))
        pairs.append(((first + fourth) / 2, (second + third) / 2))
    return pairs


def of_pairs(
    name: str,
    what: str,
    pairs: list[tuple[float, float]],
    *,
    floor: float | None = None,
    details: Mapping[str, float] | None = None,
) -> Ratio:
    """A ratio from repeated measurements (peer, ours)."""
    low, median, high = np.quantile([peer / ours for peer, ours in pairs], [0.25, 0.5, 0.75])
    return Ratio(name, what, float(median), (float(low), float(high)), len(pairs), floor, details or {})


def cpu_seconds(side: Callable[[], object]) -> float:
    """CPU seconds of this process, after collecting garbage."""
    gc.collect()
    began = time.process_time()
    side()
    return time.process_time() - began
