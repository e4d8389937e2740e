"""Limits in a dry run: what is measured."""

from __future__ import annotations

from dataclasses import dataclass

from pddpo_ray.config import Config
from pddpo_ray.limits.reading import FEEDBACK, REWARD

FREE = ("rule", "regex", "json_schema", "function")
"""Sources that cost nothing but time."""


@dataclass(frozen=True)
class Measurements:
    """How often a limit's source is asked: labels of answers of its prompts, about."""

    limit: str
    source: str
    before: int
    """About the answers of the offline pairs."""
    per_round: int
    """About the round's answers, and both answers of every explored pair."""
    in_all: int


def measurements(config: Config) -> list[Measurements]:
    """What a run under `limits:` asks their sources; nothing for means, rules and drift, which are no labels.

    A computed reward counts where its source is asked, or is a model.
    """
    lines = []
    for one in config.stated:
        if one.audited is not None:
            count = min(one.audited, config.feedback.responses) * one.people_each
            lines.append(Measurements(f"{one.limit.name}, audited", "people", 0, count, config.rounds * count))
        if one.limit.quantity.kind in ("mean", "kl") or one.source.kind in (*FREE, "model", FEEDBACK):
            continue
        over, each = one.limit.quantity.over, one.asking.labels_each or 1
        share = 1.0 if over is None else config.prompts[over].share
        # a difference asks about the reference's answers too
        asked = config.feedback.responses * (2 if one.limit.quantity.versus == "reference" else 1)
        before, fresh, pairs = (
            _within(one.asking.answers, round(count * share)) * each
            for count in (2 * config.offline.pairs, asked, 2 * config.pairs_asked)
        )
        if one.source.kind == "people" and (one.asking.answers is None or one.limit.quantity.kind == "logit"):
            before = pairs = 0  # people are asked about what only teaches where a budget says so
        per_round = fresh + pairs
        lines.append(
            Measurements(one.limit.name, str(one.source), before, per_round, before + config.rounds * per_round)
        )
    reward = config.computed_reward
    if reward is not None and reward.source.kind not in (*FREE, "world"):
        before, per_round = 2 * config.offline.pairs, 2 * config.pairs_asked
        in_all = before + config.rounds * per_round
        lines.append(Measurements(REWARD, str(reward.source), before, per_round, in_all))
    return lines


def _within(budget: int | None, count: int) -> int:
    return count if budget is None else min(budget, count)
