"""What the labels say about a limit, in the limit's own quantity: for the terminal, result.json, report and log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from pddpo_ray.limits.quantities import Amount, Kind, Limit, Quantity, Versus
from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.estimates.estimate_interval import interval


@dataclass(frozen=True)
class LimitEstimate:
    """Plain values, as result.json holds them; all numbers are in the limit's unit, a rate's are shares."""

    name: str
    limit: float
    estimate: float
    standard_error: float
    kind: Kind = "logit"
    unit: str = "logit"
    over: str | None = None
    at_least: bool = False
    low: float | None = None
    """Ends of the 95 % interval; None: the measure has no known bounds, and so no interval."""
    high: float | None = None
    unsafe_rate: float | None = None
    """Share of the labels that say unsafe, which stands beside every logit."""
    versus: Versus | None = None
    outside: int = 0
    """Answers outside a mean's stated bounds; with any, there is no interval."""

    @classmethod
    def of(cls, limit: Limit, estimate: CostEstimate, unsafe_rate: float | None = None, outside: int = 0) -> Self:
        """From the estimate of the limit's cost, of which less is better."""
        if limit.quantity.kind == "mean" or limit.quantity.versus == "reference":
            estimate = replace(estimate, bounds=limit.cost_range)
        ends = None if outside else interval(estimate)
        low, high = (None, None) if ends is None else sorted(limit.cost(end) for end in ends)
        quantity, bound = limit.quantity, limit.bound.number
        return cls(
            limit.name, bound, limit.cost(estimate.value), estimate.standard_error,
            quantity.kind, quantity.unit, quantity.over, limit.at_least, low, high, unsafe_rate, quantity.versus,
            outside,
        )  # fmt: skip

    @property
    def stated(self) -> Limit:
        return Limit(self.name, Amount(self._quantity, self.limit), self.at_least)

    @property
    def kept(self) -> bool | None:
        """Whether the whole interval is on the limit's good side (True), on the bad one (False), or neither (None)."""
        if self.low is None or self.high is None:
            return None
        return self.stated.kept(Amount(self._quantity, self.low), Amount(self._quantity, self.high))

    @property
    def measured(self) -> str:
        """`42.7 % (38.1 % to 47.3 %)`, and beside a logit the unsafe rate."""
        ends = self.no_interval if self.outside else self._quantity.text_between(self.low, self.high)
        rate = "" if self.unsafe_rate is None else f"; unsafe rate {100 * self.unsafe_rate:.3g} %"
        return f"{self._quantity.text(self.estimate)} ({ends}{rate})"

    @property
    def no_interval(self) -> str:
        """Why there is no interval."""
        if not self.outside:
            return "no interval: bounds unknown"
        answers = "1 answer" if self.outside == 1 else f"{self.outside} answers"
        return f"no interval: {answers} outside the stated bounds"

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2.0

    @property
    def brief(self) -> str:
        """`leaks 42.7 ± 4.6 % (at most 30 % over private)`, for a line of a log."""
        within = self._quantity.text_within(self.estimate, self.half_width)
        rate = "" if self.unsafe_rate is None else f", unsafe rate {100 * self.unsafe_rate:.3g} %"
        outside = f", {self.no_interval}" if self.outside else ""
        return f"{self.name} {within} ({self.stated}{rate}{outside})"

    def __str__(self) -> str:
        return f"{self.name}: estimated {self.measured}, {self.stated}"

    @property
    def _quantity(self) -> Quantity:
        return Quantity(self.kind, self.unit, self.over, versus=self.versus)
