"""What a limit is about, and numbers of it. Two numbers are only compared if they are of the same quantity.

| kind  | what is measured                                          | unit                  |
|-------|-----------------------------------------------------------|-----------------------|
| rate  | probability that a verdict on an answer is "yes", in [0, 1] | share, shown in percent |
| mean  | a number with bounds that are stated or not               | the measure's own     |
| logit | the paper's cost; 0 means half of the labels say unsafe   | logit                 |
| kl    | log policy / reference of an answer                       | nats per answer       |

A rate or a mean may be relative to the reference: the measure of an answer less that of the reference's answer to the
same prompt, or the share of answers that win against the reference's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["rate", "mean", "logit", "kl"]
Versus = Literal["reference", "wins"]
"""What a relative limit averages: the measure less that of the reference's answer, or the share of answers that are
better than the reference's."""

NOTHING = 1e-12
"""Sums of float64 that should be 0 differ from it by less."""


@dataclass(frozen=True)
class Scale:
    """Unit and bounds of a single measurement; a verdict is True, False or a probability."""

    unit: str
    verdict: bool = False
    low: float | None = None
    high: float | None = None


VERDICT = Scale("share", True, 0.0, 1.0)


@dataclass(frozen=True)
class Quantity:
    """What a number is a number of. Equal quantities have equal kind, unit, prompt set, bounds and comparison."""

    kind: Kind
    unit: str
    over: str | None = None
    """Name of the prompt set; None: all prompts."""
    low: float | None = None
    high: float | None = None
    """Bounds of one measurement; None: not known, and then no interval can be given."""
    versus: Versus | None = None
    """How answers are compared with the reference's; None: the measure stands by itself."""

    @property
    def bounded(self) -> bool:
        return self.low is not None and self.high is not None

    def text(self, number: float | None) -> str:
        """The number as people write it: `4.2 %`, `118.3 tokens`."""
        if number is None:
            return "unknown"
        number = 0.0 if abs(number) < NOTHING else number
        if self.kind == "rate":
            return f"{100 * number:.3g} %"
        return f"{number:.4g} {self.unit}".rstrip()

    def text_bound(self, number: float, *, up: bool) -> str:
        """A bound that was shown, rounded so that what is printed was shown too: an upper one up, a lower one down."""
        scale, digits = (100.0, 3) if self.kind == "rate" else (1.0, 4)
        shown = scale * number
        if shown == 0.0 or not math.isfinite(shown):
            return self.text(number)
        step = 10.0 ** (math.floor(math.log10(abs(shown))) - digits + 1)
        steps = shown / step
        # 0.05 is 5.000000000000001 in percent: what rounding of floats adds is not a part of the bound.
        whole = math.ceil(steps - 1e-6) if up else math.floor(steps + 1e-6)
        return self.text(whole * step / scale)

    def text_between(self, low: float | None, high: float | None) -> str:
        """An interval: `3.6 % to 4.8 %`, `115 to 121 tokens`; or why there is none."""
        if low is None or high is None:
            return "no interval: bounds unknown"
        if self.kind == "rate":
            return f"{self.text(low)} to {self.text(high)}"
        return f"{low:.3g} to {high:.3g} {self.unit}".rstrip()

    def text_within(self, number: float, half_width: float | None) -> str:
        """With half of an interval: `4.2 ± 0.6 %`, `118 ± 3.1 tokens`."""
        if half_width is None:
            return self.text(number)
        if self.kind == "rate":
            return f"{100 * number:.3g} ± {100 * half_width:.2g} %"
        return f"{number:.3g} ± {half_width:.2g} {self.unit}".rstrip()


@dataclass(frozen=True)
class Amount:
    """A number of a quantity. Raises TypeError when compared with one of another quantity."""

    quantity: Quantity
    number: float

    def __le__(self, other: Amount) -> bool:
        return self.number <= self._same(other)

    def __lt__(self, other: Amount) -> bool:
        return self.number < self._same(other)

    def __sub__(self, other: Amount) -> float:
        return self.number - self._same(other)

    def __str__(self) -> str:
        return self.quantity.text(self.number)

    def as_bound(self, *, up: bool) -> str:
        """The number rounded up or down: a bound that is printed must be one that was shown."""
        return self.quantity.text_bound(self.number, up=up)

    def _same(self, other: Amount) -> float:
        if not isinstance(other, Amount) or other.quantity != self.quantity:
            raise TypeError(f"{self.quantity} is not comparable with {getattr(other, 'quantity', other)}")
        return other.number


@dataclass(frozen=True)
class Limit:
    """The expected value of a measure over answers to a set of prompts is at most (at least) a bound."""

    name: str
    bound: Amount
    at_least: bool = False
    confidence: float = 0.95

    @property
    def quantity(self) -> Quantity:
        return self.bound.quantity

    def __str__(self) -> str:
        """`at most 5 % over benign`"""
        over = "" if self.quantity.over is None else f" over {self.quantity.over}"
        versus = "" if self.quantity.versus is None else " versus the reference"
        return f"at {'least' if self.at_least else 'most'} {self.bound}{over}{versus}"

    def violation(self, estimate: Amount) -> float:
        """How far an estimate is on the wrong side, in the quantity's unit; at most 0 keeps the limit."""
        return self.bound - estimate if self.at_least else estimate - self.bound

    def cost(self, value: float) -> float:
        """A measurement as a cost, of which less is better: at least d of a rate is at most 1 - d of its complement.

        at least 99 %: cost(1.0) = 0; at least 3 words: cost(5) = -5
        """
        if not self.at_least:
            return value
        return 1.0 - value if self.quantity.kind == "rate" and self.quantity.versus != "reference" else -value

    @property
    def cost_limit(self) -> float:
        """What the expected cost may be at most."""
        return self.cost(self.bound.number)

    @property
    def cost_range(self) -> tuple[float, float] | None:
        """Lowest and highest cost of one answer; None where the bounds are unknown."""
        if self.quantity.low is None or self.quantity.high is None:
            return None
        low, high = sorted((self.cost(self.quantity.low), self.cost(self.quantity.high)))
        return low, high

    @property
    def worst_cost(self) -> float | None:
        """Highest cost of one answer, which one that could not be measured counts as; None where no bound is known."""
        worst = self.quantity.low if self.at_least else self.quantity.high
        return None if worst is None else self.cost(worst)

    @property
    def is_share(self) -> bool:
        """Whether an expected cost is the probability that an answer breaks the limit's rule."""
        return self.quantity.kind == "rate" and self.cost_range == (0.0, 1.0)

    def within(self, low: float, high: float) -> Limit:
        """The same limit on a measure whose bounds became known, e.g. tokens up to the longest answer of a run."""
        quantity = replace(self.quantity, low=low, high=high)
        return replace(self, bound=Amount(quantity, self.bound.number))

    def kept(self, low: Amount | None, high: Amount | None) -> bool | None:
        """Whether an interval shows that the limit is kept (True), that it is broken (False), or neither (None)."""
        if low is None or high is None:
            return None
        good, bad = (self.bound <= low, high < self.bound) if self.at_least else (high <= self.bound, self.bound < low)
        return True if good else False if bad else None
