"""What a limit is about, and numbers of it. Two numbers are only compared if they are of the same quantity.

| kind  | what is measured                                          | unit                  |
|-------|-----------------------------------------------------------|-----------------------|
| rate  | probability that a verdict on an answer is "yes", in [0, 1] | share, shown in percent |
| mean  | a number with bounds that are stated or not               | the measure's own     |
| logit | the paper's cost; 0 means half of the labels say unsafe   | logit                 |
| kl    | log policy / reference of an answer                       | nats per answer       |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["rate", "mean", "logit", "kl"]


@dataclass(frozen=True)
class Quantity:
    """What a number is a number of. Equal quantities have equal kind, unit, prompt set and bounds."""

    kind: Kind
    unit: str
    over: str | None = None
    """Name of the prompt set; None: all prompts."""
    low: float | None = None
    high: float | None = None
    """Bounds of one measurement; None: not known, and then no interval can be given."""

    @property
    def bounded(self) -> bool:
        return self.low is not None and self.high is not None

    def text(self, number: float | None) -> str:
        """The number as people write it: `4.2 %`, `118.3 tokens`."""
        if number is None:
            return "unknown"
        if self.kind == "rate":
            return f"{100 * number:.3g} %"
        return f"{number:.4g} {self.unit}"


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
        return f"at {'least' if self.at_least else 'most'} {self.bound}{over}"

    def kept(self, low: Amount | None, high: Amount | None) -> bool | None:
        """Whether an interval shows that the limit is kept (True), that it is broken (False), or neither (None)."""
        if low is None or high is None:
            return None
        good, bad = (self.bound <= low, high < self.bound) if self.at_least else (high <= self.bound, self.bound < low)
        return True if good else False if bad else None
