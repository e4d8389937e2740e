"""Bounds by prompt and by named group beside the bound of the whole, so that one bad group cannot hide in the mean.

Groups are the recipe's prompt sets, categories of prompt files and the groups of a drawn world. Those that the recipe
lets gate (`certificate.gate`) are limits of their own, with draws of their own: a certificate needs all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pddpo_ray.backends.backends import Backends, sets_of_prompts
from pddpo_ray.certificates.ledger import Entry, TestedLimit, finding
from pddpo_ray.config import Config
from pddpo_ray.errors import UserError
from pddpo_ray.journal import JournalReader
from pddpo_ray.records import Response

SETS = "prompt-sets"
"""Phase: the groups of each prompt, by the prompt's id; of a candidate, or of a run whose rounds' draws certify."""
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
        # of rounds: one look at the end, about the mean of the draws' policies (`mixture_log_wealth` with one round)
        ends = finding(alone, mine, None if entry.candidate.rounds is None else 1)
        findings.append(GroupFinding(name, len(mine), mean, min(ends.upper, limit.high), max(ends.lower, limit.low)))
    return findings


def by_prompt(entry: Entry, limit: TestedLimit, prompt_of: Mapping[str, str]) -> list[GroupFinding]:
    """Each prompt that was drawn for a limit; `prompt_of` names an answer's prompt."""
    return by_group(entry, limit, {draw: (prompt,) for draw, prompt in prompt_of.items()})


def with_gates(config: Config, limits: Sequence[TestedLimit]) -> tuple[TestedLimit, ...]:
    """The limits of a candidate, and those of them on all prompts once more for each group that gates.

    Each is tested at the limit's own level: a certificate needs all of them, and so is wrong only if a broken one
    passed its own test (intersection-union).
    """
    groups = config.certificate.gate
    return (*limits, *(one.on_group(group) for one in limits if one.over is None for group in groups))


def demand_groups(config: Config, backends: Backends) -> None:
    """Raises UserError for a group of `certificate.gate`, or a limit's set, that no prompt of a certificate is in."""
    groups = sets_of_prompts(backends)
    drawn = backends.certification or backends.prompts
    there = sorted({name for prompt in drawn for name in groups.get(prompt.id, ())})
    for group in config.certificate.gate:
        if group not in there:
            known = f"their groups are {', '.join(there)}" if there else "they are in no group"
            raise UserError(f"certificate.gate: no prompt that certificates draw is in {group!r}; {known}")
    for limit in (one.limit for one in config.stated if backends.certification and one.limit.quantity.over):
        if limit.quantity.over not in there:
            raise UserError(
                f"certificate.prompts: the limit {limit.name} is about the set {limit.quantity.over}, whose files hold"
                " none of these prompts"
            )


def answers_of(journal: JournalReader, entry: Entry) -> list[Response]:
    """The answers of a candidate's draws: its own, or those of its rounds."""
    first, rounds = entry.candidate.first_round, entry.candidate.rounds
    if first is None or rounds is None:
        return journal.samples(entry.candidate.round)
    return [answer for number in range(first, first + rounds) for answer in journal.samples(number, "cost")]


def groups_of_draws(journal: JournalReader, entry: Entry) -> Json:
    """What a certificate needs for its groups: `prompts` of the draws by limit, `texts` and `sets` of the prompts.

    The prompt of an answer that the journal does not hold is None: it is in no group.
    """
    drawn = {answer.id: answer.prompt for answer in answers_of(journal, entry)}
    asked = {draw: prompt.id for draw, prompt in drawn.items()}
    sets = [phase.payload for phase in journal.phases(like=SETS)]
    return {
        "prompts": {name: [asked.get(draw) for draw in draws] for name, draws in entry.draws.items()},
        "texts": {prompt.id: prompt.text[:120] for prompt in drawn.values()},
        "sets": sets[0] if sets else {},
    }


def group_bounds(entry: Entry, groups: Json) -> Json:
    """Bounds by limit of every prompt that was drawn more than once, and of every group.

    Of a mixture that its rounds' own draws certify they are about the mean over these draws' policies: a round counts
    as often as it drew the prompt or the group.
    """
    bounds: Json = {}
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
                f"{limit.name} is an average over prompts; the worst of {len(known)}, {alone}: `{text}`,"
                f" {_between(limit, worst)}."
            )
    return lines


def _between(limit: TestedLimit, one: Json) -> str:
    """`3.1 % (1.9 % to 4.7 %)`"""
    low, high = limit.between(one["lower"], one["upper"])
    seen = "no number" if one["mean"] is None else str(limit.amount(one["mean"]))
    return f"{seen} ({low} to {high})"


def _as_json(one: GroupFinding) -> Json:
    mean = None if np.isnan(one.mean) else one.mean
    return {"name": one.name, "draws": one.draws, "mean": mean, "upper": one.upper, "lower": one.lower}
