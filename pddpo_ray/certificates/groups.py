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
    """Mean cost of the draws of one prompt or prompt set, with bounds valid at every look."""

    name: str
    draws: int
    mean: float
    upper: float
    lower: float


def by_group(entry: Entry, limit: TestedLimit, groups_of: Mapping[str, Sequence[str]]) -> list[GroupFinding]:
    """Each group drawn for a limit; `groups_of` gives an answer's groups.

    A group's bounds are at the limit's whole delta and shaped for its bound. Draws without a number count as the worst
    for each end; the mean leaves them out, and is NaN where there is no other.
    """
    by_name: dict[str, list[float | None]] = {}
    for draw, value in zip(entry.draws[limit.name], entry.numbers[limit.name], strict=True):
        for name in groups_of.get(draw, ()):
            by_name.setdefault(name, []).append(value)
    group_limit = replace(limit, level=limit.delta)
    findings = []
    for name, numbers in by_name.items():
        values = limit.draws(numbers)
        known_values = values[~np.isnan(values)]
        mean = limit.from_unit(float(known_values.mean())) if known_values.size else float("nan")
        # of rounds: one look at the end, about the mean of the draws' policies (`mixture_log_wealth` with one round)
        ends = finding(group_limit, numbers, None if entry.candidate.rounds is None else 1)
        findings.append(GroupFinding(name, len(numbers), mean, min(ends.upper, limit.high), max(ends.lower, limit.low)))
    return findings


def by_prompt(entry: Entry, limit: TestedLimit, prompt_of: Mapping[str, str]) -> list[GroupFinding]:
    """Each prompt drawn for a limit; `prompt_of` gives an answer's prompt."""
    return by_group(entry, limit, {draw: (prompt,) for draw, prompt in prompt_of.items()})


def with_gates(config: Config, limits: Sequence[TestedLimit]) -> tuple[TestedLimit, ...]:
    """The limits of a candidate, and a copy of each limit on all prompts for every gating group.

    Each is tested at the limit's own level: a certificate needs all of them, and so is wrong only if a broken one
    passed its own test (intersection-union).
    """
    groups = config.certificate.gate
    return (*limits, *(limit.on_group(group) for limit in limits if limit.over is None for group in groups))


def demand_groups(config: Config, backends: Backends) -> None:
    """Raises UserError for a group of `certificate.gate`, or a limit's set, that no prompt of a certificate is in."""
    groups = sets_of_prompts(backends)
    prompts = backends.certification or backends.prompts
    names = sorted({name for prompt in prompts for name in groups.get(prompt.id, ())})
    for group in config.certificate.gate:
        if group not in names:
            detail = f"their groups are {', '.join(names)}" if names else "they are in no group"
            raise UserError(f"certificate.gate: no prompt that certificates draw is in {group!r}; {detail}")
    for limit in (entry.limit for entry in config.stated if backends.certification and entry.limit.quantity.over):
        if limit.quantity.over not in names:
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
    prompts = {answer.id: answer.prompt for answer in answers_of(journal, entry)}
    prompt_ids = {draw: prompt.id for draw, prompt in prompts.items()}
    sets = [phase.payload for phase in journal.phases(like=SETS)]
    return {
        "prompts": {name: [prompt_ids.get(draw) for draw in draws] for name, draws in entry.draws.items()},
        "texts": {prompt.id: prompt.text[:120] for prompt in prompts.values()},
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
            "prompts": [_as_json(group) for group in by_prompt(entry, limit, prompt_of) if group.draws > 1],
            "sets": [_as_json(group) for group in by_group(entry, limit, sets_of)],
        }
    return bounds


def group_sentences(entry: Entry, groups: Json, bounds: Json) -> list[str]:
    """Of each limit its prompt sets, and the prompt with the highest cost; none of it decides anything."""
    lines = []
    for limit in entry.candidate.limits:
        qualifier = f"by itself, with {100 * (1 - limit.delta):.3g} % confidence"
        if limit.over is None and (sets := bounds[limit.name]["sets"]):
            details = ", ".join(f"{row['name']} {_between(limit, row)}" for row in sets)
            lines.append(f"{limit.name} by prompt set, each {qualifier}: {details}.")
        rows = [row for row in bounds[limit.name]["prompts"] if row["mean"] is not None]
        if len(rows) > 1:
            worst = max(rows, key=lambda row: (row["mean"], row["lower"]))
            text = groups["texts"].get(worst["name"], worst["name"])
            lines.append(
                f"{limit.name} is an average over prompts; the worst of {len(rows)}, {qualifier}: `{text}`,"
                f" {_between(limit, worst)}."
            )
    return lines


def _between(limit: TestedLimit, row: Json) -> str:
    """`3.1 % (1.9 % to 4.7 %)`"""
    low, high = limit.between(row["lower"], row["upper"])
    mean = "no number" if row["mean"] is None else str(limit.amount(row["mean"]))
    return f"{mean} ({low} to {high})"


def _as_json(group: GroupFinding) -> Json:
    mean = None if np.isnan(group.mean) else group.mean
    return {"name": group.name, "draws": group.draws, "mean": mean, "upper": group.upper, "lower": group.lower}
