"""From measurements of answers to an estimate with an interval.

Answers to one prompt are averaged first, so the interval counts prompts. Yes-or-no measures with one answer a prompt
get the exact binomial (Clopper-Pearson) interval, other bounded measures the betting interval. A measurement without a
number stays out of the estimate; the interval counts it as its worst for each end, so no source can win by failing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.records import Array
from pddpo_ray.theory.certificates.certificate import lower_bound, upper_bound
from pddpo_ray.theory.certificates.measured_draws import (
    LOWER_WORST,
    UPPER_WORST,
    counted,
    scaled,
    with_people,
)
from pddpo_ray.theory.estimates.cost_estimate import bias_bound, clipped_logit
from pddpo_ray.theory.intervals import binomial_high, binomial_low

EDGE = 1e-3
"""Bets are tuned for a limit at least this far inside the measure's range."""
COST_MAX = 5.0
"""Bound of a logit where none is stated."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Measurements [n], NaN where there is no number, within bounds that are known or not."""

    values: Array
    low: float | None
    high: float | None
    bias: float = 0.0
    """How far their expected value may be from the quantity, on both sides."""
    ends: tuple[float, float] | None = None
    """Bounds of the quantity where those of single values are wider."""

    @property
    def some(self) -> bool:
        return bool((~np.isnan(self.values)).any())


@dataclass(frozen=True)
class Estimated:
    """A mean over prompts with its interval, as far as there is one."""

    value: float | None
    low: float | None
    high: float | None
    problem: str = ""


def logits(shares: Array, labels_each: int, cost_max: float | None) -> Drawn:
    """Shares of unsafe labels as clipped logits; the interval is widened by the bias that so few labels leave."""
    bound = COST_MAX if cost_max is None else cost_max
    values = np.where(np.isnan(shares), np.nan, clipped_logit(np.nan_to_num(shares, nan=0.5), bound))
    return Drawn(values, -bound, bound, bias_bound(labels_each, bound))


def audited(machine: Array, people: Array, is_asked: NDArray[np.bool_], low: float, high: float) -> Drawn:
    """f + (xi/q)(y - f): its mean is that of people's values whatever the machine says (measured_draws.with_people).

    `is_asked` [n] marks an even draw of fixed size; q is its share. Without a machine's value there is no number.
    """
    if not is_asked.any():
        return Drawn(machine, low, high)
    share = float(is_asked.mean())
    draws = with_people(scaled(machine, low, high), scaled(people, low, high), is_asked, share)
    reach = (1.0 / share - 1.0) * (high - low)
    widest = low - reach, high + reach
    return Drawn(widest[0] + (widest[1] - widest[0]) * draws, *widest, ends=(low, high))


def estimated(drawn: Drawn, prompts: Sequence[str], limit: float, confidence: float) -> Estimated:
    """Mean over prompts [n] and both ends of its interval, for a limit on the measure's own scale."""
    groups = _group_by_prompt(drawn.values, prompts)
    means = [float(group[~np.isnan(group)].mean()) for group in groups if not np.isnan(group).all()]
    value = float(np.mean(means)) if means else None
    if not groups:
        return Estimated(None, None, None, "no answers")
    if drawn.low is None or drawn.high is None:
        return Estimated(value, None, None, "no interval: bounds unknown; state them, e.g. bounds: [0, 400]")
    outside = drawn.values[(drawn.values < drawn.low) | (drawn.values > drawn.high)]
    if outside.size:
        within = f"the stated bounds [{drawn.low:g}, {drawn.high:g}]"
        return Estimated(value, None, None, f"no interval: {outside[0]:g} lies outside {within}; state wider ones")
    span, tail = drawn.high - drawn.low, (1.0 - confidence) / 2.0
    shares = [scaled(group, drawn.low, drawn.high) for group in groups]
    aim = float(np.clip((limit - drawn.low) / span, EDGE, 1.0 - EDGE))
    low = _low_end(_means(shares, LOWER_WORST), aim, tail)
    high = _high_end(_means(shares, UPPER_WORST), aim, tail)
    least, most = drawn.ends or (drawn.low, drawn.high)
    return Estimated(
        value,
        max(least, drawn.low + span * low - drawn.bias),
        min(most, drawn.low + span * high + drawn.bias),
    )


def _group_by_prompt(values: Array, prompts: Sequence[str]) -> list[Array]:
    """Values of each prompt, in the order in which prompts occur first."""
    groups: dict[str, list[float]] = {}
    for value, prompt in zip(values, prompts, strict=True):
        groups.setdefault(prompt, []).append(float(value))
    return [np.array(group) for group in groups.values()]


def _means(shares: Sequence[Array], worst: float) -> Array:
    return np.array([counted(group, worst).mean() for group in shares])


def _high_end(values: Array, limit: float, tail: float) -> float:
    if np.isin(values, (0.0, 1.0)).all():
        return binomial_high(float(values.sum()), len(values), tail)
    return upper_bound(values, limit, tail)


def _low_end(values: Array, limit: float, tail: float) -> float:
    if np.isin(values, (0.0, 1.0)).all():
        return binomial_low(float(values.sum()), len(values), tail)
    return lower_bound(values, limit, tail)
