"""Limits in a dry run: what is measured."""

from __future__ import annotations

from dataclasses import dataclass

from pddpo_ray.config import Config
from pddpo_ray.limits.reading import FEEDBACK, REWARD

FREE = ("rule", "regex", "json_schema", "function")
"""Sources that cost nothing but time."""


@dataclass(frozen=True)
class Measurements:
    """About how many labels of answers to its prompts a limit's source gives."""

    limit: str
    source: str
    before: int
    """About the answers of the offline pairs."""
    per_round: int
    """About the round's answers, and both answers of every explored pair."""
    in_all: int


def measurements(config: Config) -> list[Measurements]:
    """What a run asks the sources of its `limits:`; nothing for means, KL, free sources and those of `feedback`.

    A computed reward counts unless its source is free or the world.
    """
    lines = []
    for entry in config.stated:
        if entry.audited is not None:
            count = min(entry.audited, config.feedback.responses) * entry.people_each
            lines.append(Measurements(f"{entry.limit.name}, audited", "people", 0, count, config.rounds * count))
        if entry.limit.quantity.kind in ("mean", "kl") or entry.source.kind in (*FREE, "model", FEEDBACK):
            continue
        over, each = entry.limit.quantity.over, entry.asking.labels_each or 1
        share = 1.0 if over is None else config.prompts[over].share
        # a difference asks about the reference's answers too
        answers = config.feedback.responses * (2 if entry.limit.quantity.versus == "reference" else 1)
        before, fresh, pairs = (
            _count_in_budget(entry.asking.answers, round(count * share)) * each
            for count in (2 * config.offline.pairs, answers, 2 * config.pairs_asked)
        )
        if entry.source.kind == "people" and (entry.asking.answers is None or entry.limit.quantity.kind == "logit"):
            before = pairs = 0  # people are asked about what only teaches where a budget says so
        per_round = fresh + pairs
        lines.append(
            Measurements(entry.limit.name, str(entry.source), before, per_round, before + config.rounds * per_round)
        )
    reward = config.computed_reward
    if reward is not None and reward.source.kind not in (*FREE, "world"):
        before, per_round = 2 * config.offline.pairs, 2 * config.pairs_asked
        in_all = before + config.rounds * per_round
        lines.append(Measurements(REWARD, str(reward.source), before, per_round, in_all))
    return lines


def _count_in_budget(budget: int | None, count: int) -> int:
    return count if budget is None else min(budget, count)
