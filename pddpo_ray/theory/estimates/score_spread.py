"""Where a cost model's scores lie, against the box [-C, C] to which labels that estimate a logit are clipped."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from pddpo_ray.records import Array

SHARES = {"q01": 0.01, "q05": 0.05, "q50": 0.5, "q95": 0.95, "q99": 0.99}


@dataclass(frozen=True)
class ScoreSpread:
    """Quantiles of scores, and the share of them at or beyond the ends of the box."""

    q01: float
    q05: float
    q50: float
    q95: float
    q99: float
    at_clip: float
    cost_max: float
    largest: float
    """|score| that 99 % of the scores stay below."""

    @property
    def fitting_box(self) -> float:
        """The next C in steps of 1/2 that 99 % of the scores lie within."""
        return math.floor(2.0 * self.largest) / 2.0 + 0.5

    def as_metrics(self) -> dict[str, float]:
        """By the names of the journal's metrics."""
        return {f"scorer/cost_{name}": getattr(self, name) for name in (*SHARES, "at_clip")}

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"half of them lie below {self.q50:.3g}, nine tenths between {self.q05:.3g} and {self.q95:.3g}, and"
            f" {100 * self.at_clip:.3g} % at or beyond ±{self.cost_max:g}"
        )


def spread_of(scores: Array, cost_max: float) -> ScoreSpread:
    """Of at least one score. [n]"""
    sizes = np.abs(np.asarray(scores, dtype=np.float64))
    return ScoreSpread(
        **{name: float(np.quantile(scores, share)) for name, share in SHARES.items()},
        at_clip=float((sizes >= cost_max).mean()),
        cost_max=cost_max,
        largest=float(np.quantile(sizes, 0.99)),
    )
