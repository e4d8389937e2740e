"""What one finished round comes to, as a line of a log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pddpo_ray.report.readable import seconds, short


@dataclass(frozen=True)
class RoundLine:
    """One finished round as one line of a log; numbers that a run does not have are left out.

    round 7/16 · λ 0.831 → 0.795 · cost −0.041 ± 0.062 · gap 0.310 (f 0.420, g −0.020) · ⊥ 0.004
    · slopes 0.970/0.910 · 3,120 tok/s · 8.4 s      (on one line)
    """

    number: int
    total: int
    values: Mapping[str, float] = field(default_factory=dict)
    took: float | None = None

    def __str__(self) -> str:
        parts = [f"round {self.number}/{self.total}", *self._dual(), *self._exact()]
        if self._has("fit/slope_reward", "fit/slope_cost"):
            parts.append(f"slopes {self._short('fit/slope_reward')}/{self._short('fit/slope_cost')}")
        if self._has("rollout/tokens_per_second"):
            parts.append(f"{short(round(self.values['rollout/tokens_per_second']))} tok/s")
        if self.took is not None:
            parts.append(seconds(self.took))
        return " · ".join(parts)

    def _dual(self) -> list[str]:
        parts = []
        if self._has("dual/multiplier"):
            after = f" → {self._short('dual/next')}" if self._has("dual/next") else ""
            parts.append(f"λ {self._short('dual/multiplier')}{after}")
        if self._has("cost/estimate"):
            limit = self.values.get("cost/threshold", 0.0)
            beside = f" (limit {short(limit)})" if limit else ""
            parts.append(f"cost {self._short('cost/estimate')}{self._error()}{beside}")
        return parts

    def _error(self) -> str:
        """Half of the 95 % interval."""
        if not self._has("cost/low", "cost/high"):
            return ""
        return f" ± {short(0.5 * (self.values['cost/high'] - self.values['cost/low']))}"

    def _exact(self) -> list[str]:
        parts = []
        if self._has("exact/f_policy", "exact/g_policy"):
            point = f"f {self._short('exact/f_policy')}, g {self._short('exact/g_policy')}"
            gap = f"gap {self._short('exact/gap_policy')} ({point})"
            parts.append(gap if self._has("exact/gap_policy") else point)
        if self._has("exact/off_support"):
            parts.append(f"⊥ {self._short('exact/off_support')}")
        return parts

    def _has(self, *names: str) -> bool:
        return all(math.isfinite(self.values.get(name, math.nan)) for name in names)

    def _short(self, name: str) -> str:
        return short(self.values[name])
