"""A file of answers against limits: an estimate with its interval for each, and whether the limit is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.limits.drawn import Drawn, audited, estimated, logits
from pddpo_ray.limits.given_labels import people_source
from pddpo_ray.limits.quantities import Amount, Limit
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import SHOWN_REASONS, Answer, Source, Unmeasured, ask, chosen_for


@dataclass(frozen=True)
class Checked:
    """What a file of answers says about one limit."""

    limit: Limit
    source: str
    estimate: Amount | None
    low: Amount | None
    high: Amount | None
    n: int
    """Answers that were measured."""
    prompts: int
    failed: int
    """Answers that could not be measured, abstentions included."""
    reasons: tuple[str, ...] = ()
    """The first reasons for that, with their rows."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """How many failed for which kind of reason."""
    note: str = ""

    @property
    def kept(self) -> bool | None:
        return self.limit.kept(self.low, self.high)

    def as_json(self) -> dict[str, Any]:
        return {
            "estimate": None if self.estimate is None else self.estimate.number,
            "low": None if self.low is None else self.low.number,
            "high": None if self.high is None else self.high.number,
            "n": self.n,
            "prompts": self.prompts,
            "failed": self.failed,
            "kept": self.kept,
            "limit": str(self.limit),
            "confidence": self.limit.confidence,
            "source": self.source,
            "note": self.note,
            "reasons": list(self.reasons),
            "kinds": dict(self.kinds),
        }


def check(limits: Sequence[tuple[StatedLimit, Source | None]], answers: Sequence[Answer]) -> list[Checked]:
    """Every limit on the answers of its prompt set. Raises UserError if a limit names a set and no row has one."""
    return [check_one(limit, source, answers) for limit, source in limits]


def check_one(stated_limit: StatedLimit, source: Source | None, answers: Sequence[Answer]) -> Checked:
    """One limit on the answers of its prompt set; a limit without a source is only measured in a run."""
    limit, quantity = stated_limit.limit, stated_limit.limit.quantity
    if source is None:
        return Checked(
            limit, str(stated_limit.source), None, None, None, 0, 0, 0, note="measured in a run, not in a file"
        )
    if stated_limit.unsure:
        raise UserError(f"{stated_limit.where}.audited_by.unsure: of a file people label an even draw; leave it out")
    set_answers = of_set(stated_limit, answers)
    measured = ask(limit.name, source, set_answers, stated_limit.asking)
    indices = [index for index, value in enumerate(measured.values) if value is not None]
    values = np.array([value if isinstance(value, float) else np.nan for value in measured.values if value is not None])
    asked_answers = [set_answers[index] for index in indices]
    drawn, reasons, note = Drawn(values, quantity.low, quantity.high), measured.reasons, source.note
    kinds = measured.kinds
    if quantity.kind == "logit":
        labels_each = stated_limit.asking.labels_each
        if labels_each is None:
            raise UserError(
                f"{stated_limit.where}: say how many labels an answer has, e.g. {{people: {{labels_each: 20}}}}"
            )
        drawn = logits(values, labels_each, quantity.high)
        note = f"{100 * float(np.nanmean(values)):.3g} % of the labels say unsafe" if drawn.some else note
    if stated_limit.audited is not None:
        drawn, unlabelled = _audit(stated_limit, values, asked_answers)
        reasons = (*unlabelled, *reasons)[:SHOWN_REASONS]
        kinds = kinds + Counter({"no label by people": len(unlabelled)})
        note = "; ".join(part for part in (f"{source.name}, corrected by people", note) if part)
    result = estimated(drawn, [answer.prompt for answer in asked_answers], limit.bound.number, limit.confidence)
    failed = int(np.isnan(drawn.values).sum())
    return Checked(
        limit,
        source.name,
        None if result.value is None else Amount(quantity, result.value),
        None if result.low is None else Amount(quantity, result.low),
        None if result.high is None else Amount(quantity, result.high),
        len(drawn.values) - failed,
        len({answer.prompt for answer in asked_answers}),
        failed,
        reasons,
        kinds,
        "; ".join(part for part in (result.problem, note) if part),
    )


def of_set(stated_limit: StatedLimit, answers: Sequence[Answer]) -> list[Answer]:
    """The answers whose `set` is the limit's prompt set, or all. Raises UserError if no row names a set."""
    over = stated_limit.limit.quantity.over
    if over is not None and not any("set" in answer.row for answer in answers):
        raise UserError(
            f"limit {stated_limit.limit.name} is over `{over}`, and no row names its set; "
            f'add "set": "{over}" to its rows'
        )
    return [answer for answer in answers if over is None or over in sets_of(answer)]


def sets_of(answer: Answer) -> list[Any]:
    """The prompt sets that an answer's row names: one, or a list of them."""
    sets = answer.row.get("set")
    return sets if isinstance(sets, list) else [sets]


def _audit(stated_limit: StatedLimit, values: Any, answers: Sequence[Answer]) -> tuple[Drawn, list[str]]:
    """The source's values, corrected by people's labels of an even draw of the answers; reasons for missing ones.

    Which answers people are asked about follows from the limit's name and the number of answers, not from the labels.
    """
    limit, quantity = stated_limit.limit, stated_limit.limit.quantity
    if quantity.low is None or quantity.high is None or stated_limit.audited is None:
        raise UserError(f"{stated_limit.where}: audited_by needs `bounds` of the measure")
    bounds = (quantity.low, quantity.high) if quantity.kind == "mean" else None
    outside = np.flatnonzero((values < quantity.low) | (values > quantity.high))
    if outside.size:
        raise UserError(
            f"{stated_limit.where}: {answers[outside[0]].where} measures {values[outside[0]]:g}, outside the stated"
            f" bounds [{quantity.low:g}, {quantity.high:g}], within which people audit it; state wider ones"
        )
    people = people_source(limit.name, wins=stated_limit.wins, bounds=bounds)
    indices = chosen_for(f"{limit.name}, audited", len(answers), stated_limit.audited)
    labels = np.full(len(answers), np.nan)
    reasons = []
    for index, value in zip(indices, people.values([answers[index] for index in indices]), strict=True):
        if isinstance(value, Unmeasured):
            reasons.append(f"{answers[index].where}: people {value.reason}")
        else:
            labels[index] = value
    coins = np.zeros(len(answers), dtype=bool)
    coins[indices] = True
    return audited(values, labels, coins, quantity.low, quantity.high), reasons
