"""What one finished round comes to, as a line of a log."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pddpo_ray.report.readable import seconds, short


@dataclass(frozen=True)
class RoundLine:
    """One finished round as one line of a log; numbers that a run does not have are left out.

    round 7/16 · multiplier 0.831 → 0.795 · cost −0.041 ± 0.062 (limit 0) · gap 0.310 (helpfulness 0.420, violation
    −0.020) · off-grammar 0.004 · slope of reward 0.970, of cost 0.910 · 3,120 tokens/s · 8.4 s      (on one line)

    ± is half of the estimate's 95 % interval.
    """

    number: int
    total: int
    values: Mapping[str, float] = field(default_factory=dict)
    took: float | None = None

    def __str__(self) -> str:
        parts = [
            f"round {self.number}/{self.total}",
            self._fill("multiplier {dual/multiplier}") + self._fill(" → {dual/next}"),
            self._fill("cost {cost/estimate}") + self._half_width() + self._fill(" (limit {cost/limit})"),
            self._fill("gap {exact/gap_policy} (helpfulness {exact/f_policy}, violation {exact/g_policy})"),
            self._fill("off-grammar {exact/off_support}") if self.values.get("exact/off_support") else "",
            self._fill("slope of reward {fit/slope_reward}, of cost {fit/slope_cost}"),
            self._fill("{rollout/tokens_per_second} tokens/s"),
            "" if self.took is None else seconds(self.took),
        ]
        return " · ".join(part for part in parts if part)

    def _fill(self, text: str) -> str:
        """The text with its metrics' values; empty where one is missing."""
        names = re.findall(r"{(.+?)}", text)
        if not all(math.isfinite(self.values.get(name, math.nan)) for name in names):
            return ""
        return re.sub(r"{(.+?)}", lambda match: short(self.values[match[1]]), text)

    def _half_width(self) -> str:
        low, high = self.values.get("cost/low", math.nan), self.values.get("cost/high", math.nan)
        return f" ± {short((high - low) / 2)}" if math.isfinite(high - low) else ""
