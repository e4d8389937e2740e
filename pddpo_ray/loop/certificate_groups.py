"""Bounds by prompt and by prompt set beside the bound of the whole, so that one bad group cannot hide in the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pddpo_ray.journal import JournalReader
from pddpo_ray.loop.backends import Backends
from pddpo_ray.loop.ledger import Entry, TestedLimit, finding

SETS = "prompt-sets"
"""Phase of a candidate: the prompt sets of each prompt, by the prompt's id."""
Json = dict[str, Any]


@dataclass(frozen=True)
class GroupFinding:
    """What the draws of one prompt or prompt set say by themselves; costs, bounds valid at every look."""

    name: str
    draws: int
    mean: float
    upper: float
    lower: float


def by_group(entry: Entry, limit: TestedLimit, groups_of: Mapping[str, Sequence[str]]) -> list[GroupFinding]:
    """Each group that was drawn for a limit; `groups_of` names an answer's groups.

    A group's bounds are at the limit's whole delta and shaped for its bound. Draws without a number count as the worst
    for each end; they stay out of the mean, which is NaN where there is no other.
    """
    numbers: dict[str, list[float | None]] = {}
    for draw, value in zip(entry.draws[limit.name], entry.numbers[limit.name], strict=True):
        for name in groups_of.get(draw, ()):
            numbers.setdefault(name, []).append(value)
    alone = replace(limit, level=limit.delta)
    findings = []
    for name, mine in numbers.items():
        values = limit.draws(mine)
        known = values[~np.isnan(values)]
        mean = limit.from_unit(float(known.mean())) if known.size else float("nan")
        ends = finding(alone, mine)
        findings.append(GroupFinding(name, len(mine), mean, min(ends.upper, limit.high), max(ends.lower, limit.low)))
    return findings


def by_prompt(entry: Entry, limit: TestedLimit, prompt_of: Mapping[str, str]) -> list[GroupFinding]:
    """Each prompt that was drawn for a limit; `prompt_of` names an answer's prompt."""
    return by_group(entry, limit, {draw: (prompt,) for draw, prompt in prompt_of.items()})


def sets_of_prompts(backends: Backends) -> dict[str, list[str]]:
    """Names of each prompt's sets, and of its group in the world's family, by its id; {} where there are neither."""
    named: dict[str, list[str]] = {}
    sets = backends.prompt_sets
    if sets is not None:
        for column, place in enumerate(sets.prompts):
            inside = [name for name, row in zip(sets.names, sets.chances, strict=True) if row[column] > 0]
            named[backends.prompts[int(str(place))].id] = inside
    if backends.world is not None and backends.world.groups is not None:
        for prompt, group in zip(backends.prompts, backends.world.groups, strict=True):
            named.setdefault(prompt.id, []).append(f"group {group}")
    return named


def groups_of_draws(journal: JournalReader, entry: Entry) -> Json:
    """What a certificate needs for its groups: `prompts` of the draws by limit, `texts` and `sets` of the prompts.

    The prompt of an answer that the journal does not hold is None: it is in no group.
    """
    number = entry.candidate.round
    drawn = {}
    if entry.candidate.rounds is None:
        drawn = {answer.id: answer.prompt for answer in journal.samples(number)}
    asked = {draw: prompt.id for draw, prompt in drawn.items()}
    sets = [phase.payload for phase in journal.phases(number, like=SETS)]
    return {
        "prompts": {name: [asked.get(draw) for draw in draws] for name, draws in entry.draws.items()},
        "texts": {prompt.id: prompt.text[:120] for prompt in drawn.values()},
        "sets": sets[0] if sets else {},
    }


def group_bounds(entry: Entry, groups: Json) -> Json:
    """Bounds by limit of every prompt that was drawn more than once, and of every prompt set.

    A mixture that its rounds' own draws certify has none: a round draws a prompt as often as chance has it, and the
    mean over rounds is bounded by equally many draws of each alone.
    """
    bounds: Json = {}
    if entry.candidate.rounds is not None:
        return {limit.name: {"prompts": [], "sets": []} for limit in entry.candidate.limits}
    for limit in entry.candidate.limits:
        draws, prompts = entry.draws[limit.name], groups["prompts"][limit.name]
        prompt_of = {draw: prompt for draw, prompt in zip(draws, prompts, strict=True) if prompt is not None}
        sets_of = {draw: groups["sets"].get(prompt, []) for draw, prompt in prompt_of.items()}
        bounds[limit.name] = {
            "prompts": [_as_json(one) for one in by_prompt(entry, limit, prompt_of) if one.draws > 1],
            "sets": [_as_json(one) for one in by_group(entry, limit, sets_of)],
        }
    return bounds


def group_sentences(entry: Entry, groups: Json, bounds: Json) -> list[str]:
    """Of each limit its prompt sets, and the prompt with the highest cost; none of it decides anything."""
    lines = []
    for limit in entry.candidate.limits:
        alone = f"by itself, with {100 * (1 - limit.delta):.3g} % confidence"
        if limit.over is None and (sets := bounds[limit.name]["sets"]):
            said = ", ".join(f"{one['name']} {_between(limit, one)}" for one in sets)
            lines.append(f"{limit.name} by prompt set, each {alone}: {said}.")
        known = [one for one in bounds[limit.name]["prompts"] if one["mean"] is not None]
        if len(known) > 1:
            worst = max(known, key=lambda one: (one["mean"], one["lower"]))
            text = groups["texts"].get(worst["name"], worst["name"])
            lines.append(
                f"{limit.name}, the worst of {len(known)} prompts, {alone}: `{text}`, {_between(limit, worst)}."
            )
    return lines


def _between(limit: TestedLimit, one: Json) -> str:
    """`3.1 % (1.9 % to 4.7 %)`"""
    low, high = sorted((limit.amount(one["lower"]), limit.amount(one["upper"])), key=lambda end: end.number)
    seen = "no number" if one["mean"] is None else str(limit.amount(one["mean"]))
    return f"{seen} ({low} to {high})"


def _as_json(one: GroupFinding) -> Json:
    mean = None if np.isnan(one.mean) else one.mean
    return {"name": one.name, "draws": one.draws, "mean": mean, "upper": one.upper, "lower": one.lower}
