"""A limit of a run: as it is stated, with the range of its measure and the prompts that it acts on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pddpo_ray.limits.of_recipe import labelled_by_feedback
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.records import Array, Prompt
from pddpo_ray.theory.estimates.cost_estimate import Tokens

UNSAFE_RATE = "cost/unsafe_rate"
"""Metric of a round, behind the limit's prefix."""
OUTSIDE = "cost/outside"
"""The same: answers that measured outside the stated bounds of a mean; left out where there are none."""
OPINIONS = ("world", "people", "judge")
"""Sources whose verdict about an answer may change when they are asked again."""


@dataclass(frozen=True, eq=False)
class HeldLimit:
    """One limit of a run: as it is stated, the length of its measure's range, and which prompts it acts on."""

    stated: StatedLimit
    scale: float
    factors: Mapping[Tokens, float]
    """P_s / P_0 by the prompt's tokens."""

    @property
    def name(self) -> str:
        return self.stated.limit.name

    @property
    def on_drift(self) -> bool:
        """Whether it is about log policy / reference."""
        return self.stated.limit.quantity.kind == "kl"

    @property
    def difference(self) -> bool:
        """Whether the measure of the reference's answer is taken off."""
        return self.stated.limit.quantity.versus == "reference"

    @property
    def centre(self) -> float:
        """Middle of the costs of one answer; a drift has no upper end: what its limit allows stands for it."""
        if self.stated.labelled:
            return 0.0
        low, high = self.stated.limit.cost_range or (0.0, self.stated.limit.cost_limit)
        return (low + high) / 2.0

    @property
    def by_values(self) -> bool:
        return not (self.stated.by_comparisons or self.on_drift)

    @property
    def clip(self) -> float | None:
        """C of a logit, which lies in [-C, C]; None of other costs."""
        if self.stated.limit.quantity.kind != "logit" or self.stated.limit.cost_range is None:
            return None
        low, high = self.stated.limit.cost_range
        return (high - low) / 2.0

    @property
    def labels_each(self) -> int:
        """Labels or opinions that one cost comes from; a cost model's score is one, whatever else is stated."""
        scored = self.stated.labelled and self.stated.limit.quantity.kind == "mean"
        return 1 if scored else self.stated.asking.labels_each or 1

    @property
    def stated_bounds(self) -> tuple[float, float]:
        """Bounds of an answer's measure under a mean; infinite for other measures, and where none are stated."""
        quantity = self.stated.limit.quantity
        if quantity.kind != "mean" or self.difference or quantity.low is None or quantity.high is None:
            return -math.inf, math.inf
        return quantity.low, quantity.high

    @property
    def of_one_opinion(self) -> bool:
        """Whether a value is a single verdict that might have been another one, so that it hides its own noise."""
        limit, asking = self.stated.limit, self.stated.asking
        drawn = self.stated.wins or self.stated.source.kind in OPINIONS
        return limit.quantity.kind == "rate" and drawn and (asking.labels_each or 1) == 1


def held_limits(
    stated_limits: Sequence[StatedLimit], scales: Sequence[float], factors: Array, prompts: Sequence[Prompt]
) -> tuple[HeldLimit, ...]:
    """Limits with the ranges of their measures [I] and P_s / P_0 of every prompt [I, X]."""
    ids = [prompt.token_ids for prompt in prompts]
    return tuple(
        HeldLimit(limit, scale, dict(zip(ids, row.tolist(), strict=True)))
        for limit, scale, row in zip(stated_limits, scales, factors, strict=True)
    )


def answers_each(stated_limits: Sequence[StatedLimit]) -> int:
    """Answers per prompt for a round's estimates: one where feedback labels each; else two, which show the
    variance within a prompt and are a pair to learn from."""
    return 1 if labelled_by_feedback(stated_limits) else 2


def clip_of(held_limits: Sequence[HeldLimit]) -> float:
    """C of the logits."""
    return max((limit.clip for limit in held_limits if limit.clip is not None), default=math.inf)
