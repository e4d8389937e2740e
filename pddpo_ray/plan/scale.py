"""On which scale a recipe's costs and limits are: whose numbers they are, and what happens to large ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pddpo_ray.config import Config, ModelFeedback, StoredScorerConfig
from pddpo_ray.scoring.held_out import REPORT
from pddpo_ray.theory.estimates.score_spread import spread_of


@dataclass(frozen=True)
class CostScale:
    """`source` gives the numbers; `clip` is C where an answer's cost is clipped to [-C, C], else None."""

    source: str
    signal: str
    clip: float | None
    limits: dict[str, float]
    clip_share: float | None = None
    """Share of the answers before round 1 that a cost model may score beyond the clip; None: no model labels."""
    seen: str | None = None
    """What a cost model of `pddpo scorer train` scored on held-out answers, against the clip."""
    stated: list[str] = field(default_factory=list)
    """Limits that sources measure, each with its source: they have scales of their own."""

    def lines(self) -> list[str]:
        """The same in words: what a cost is, what happens beyond the clip, what the limits are on."""
        if self.stated:
            return self.stated
        limits = ", ".join(f"{name} at most {limit:g}" for name, limit in self.limits.items())
        if self.signal == "cost_model":
            return [
                f"cost of an answer: {self.source}, as it is: neither labelled nor clipped",
                f"limits, on that scale: {limits}",
            ]
        chance = f"labels: unsafe with probability sigmoid of {self.source}"
        if self.signal == "unsafe_rate":
            return [chance, f"cost of an answer: its chance of being called unsafe, in [0, 1]; limits: {limits}"]
        return [
            chance,
            f"cost of an answer: log-odds of unsafe among its labels, clipped to [-{self.clip:g}, {self.clip:g}]"
            f" (dual.cost_max): one beyond counts as {self.clip:g} or -{self.clip:g}",
            *self._box(),
            f"limits, on the mean of those: {limits}",
        ]

    def _box(self) -> list[str]:
        if self.clip_share is None:
            return []
        score_lines = [] if self.seen is None else [f"held-out scores of that model: {self.seen}"]
        return [
            *score_lines,
            f"checked before round 1: the run stops if more than {100 * self.clip_share:g} % of the answers"
            f" score at or beyond ±{self.clip:g}, and names the dual.cost_max to set",
        ]


def cost_scale(config: Config) -> CostScale:
    """The scale of the recipe's cost estimate and limits."""
    signal = config.signal
    clip = config.dual.cost_max if signal == "logit_labels" else None
    lines = [
        f"{entry.limit.name}: {entry.limit}, measured by {entry.source}"
        for entry in config.stated
        if not entry.labelled
    ]
    share = config.scorers.clip_share if isinstance(config.feedback, ModelFeedback) else None
    return CostScale(_source(config), signal, clip, dict(config.thresholds), share, _held_out_spread(config), lines)


def _held_out_spread(config: Config) -> str | None:
    feedback = config.feedback
    if not isinstance(feedback, ModelFeedback) or feedback.cost is None or "cost" not in config.asked_models:
        return None
    report = Path(feedback.cost.path) / REPORT
    if not report.is_file():
        return None
    scores = json.loads(report.read_text(encoding="utf-8"))["held_out"]["scores"]
    scaled = [feedback.cost.scale * score + feedback.cost.shift for score in scores]
    return str(spread_of(np.array(scaled), config.dual.cost_max))


def _source(config: Config) -> str:
    if config.score_models is not None:
        return _scorer_source(config.score_models.cost)
    opinions = {"judge": "the judge's opinion", "people": "people's opinion", "mixed": "the world's cost with errors"}
    return opinions.get(config.feedback.kind, "the world's cost")


def _scorer_source(scorer: StoredScorerConfig | None) -> str:
    if scorer is None:
        return "the score of the cost model that is trained before round 1"
    turned = "" if (scorer.scale, scorer.shift) == (1.0, 0.0) else f" x {scorer.scale:g} + {scorer.shift:g}"
    return f"the raw score of {scorer.path}{turned}"
