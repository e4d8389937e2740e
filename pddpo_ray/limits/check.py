"""A file of answers against limits: an estimate with its interval for each, and whether the limit is kept.

Answers to one prompt are averaged first, so the interval counts prompts. Yes-or-no measures with one answer a prompt
get the exact binomial (Clopper-Pearson) interval, other bounded measures the interval of bets. A row that could not be
measured stays out of the estimate; the interval counts it as its worst for each end, so no source can win by failing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.limits.quantities import Amount, Limit
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import Answer, Source, Unmeasured, ask
from pddpo_ray.records import Array, Message
from pddpo_ray.theory.certificate import lower_bound, upper_bound
from pddpo_ray.theory.intervals import binomial_high, binomial_low

EDGE = 1e-3
"""Bets are shaped for limits at least so far from the ends of the measure's range."""


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
    """Answers that the source could not measure, abstentions included."""
    reasons: tuple[str, ...] = ()
    """The first reasons for that, with their rows."""
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
        }


def check(limits: Sequence[tuple[StatedLimit, Source]], answers: Sequence[Answer]) -> list[Checked]:
    """Every limit on the answers of its prompt set. Raises UserError if a limit names a set and no row has one."""
    return [check_one(stated, source, answers) for stated, source in limits]


def check_one(stated: StatedLimit, source: Source, answers: Sequence[Answer]) -> Checked:
    """One limit; its answers are those whose `set` is the limit's prompt set, or all."""
    limit, quantity = stated.limit, stated.limit.quantity
    over = quantity.over
    if over is not None and not any("set" in answer.row for answer in answers):
        raise UserError(
            f'limit {limit.name} is over `{over}`, and no row names its set; add "set": "{over}" to its rows'
        )
    own = [answer for answer in answers if over is None or answer.row.get("set") == over]
    measured = ask(limit.name, source, own, stated.asking)
    values: dict[str, list[float]] = {}
    missing: dict[str, int] = {}
    for answer, value in zip(own, measured.values, strict=True):
        if value is None:
            continue
        numbers = values.setdefault(answer.prompt, [])
        if isinstance(value, Unmeasured):
            missing[answer.prompt] = missing.get(answer.prompt, 0) + 1
        else:
            numbers.append(value)
    low, high, problem = _interval(limit, values, missing)
    means = [float(np.mean(found)) for found in values.values() if found]
    return Checked(
        limit,
        source.name,
        Amount(quantity, float(np.mean(means))) if means else None,
        None if low is None else Amount(quantity, low),
        None if high is None else Amount(quantity, high),
        len(measured.numbers),
        len(values),
        measured.failed,
        measured.reasons,
        "; ".join(part for part in (problem, source.note) if part),
    )


def _interval(
    limit: Limit, values: Mapping[str, Sequence[float]], missing: Mapping[str, int]
) -> tuple[float | None, float | None, str]:
    """Both ends of the interval at the limit's confidence, or None and why."""
    quantity = limit.quantity
    if not values:
        return None, None, "no answers"
    if quantity.low is None or quantity.high is None:
        return None, None, "no interval: bounds unknown; state them, e.g. bounds: [0, 400]"
    span = quantity.high - quantity.low
    level = (1.0 - limit.confidence) / 2.0
    worst_high, worst_low = ([], [])  # type: tuple[list[float], list[float]]
    for prompt, found in values.items():
        scaled = (np.asarray(found) - quantity.low) / span
        lacking = missing.get(prompt, 0)
        worst_high.append(float(np.mean([*scaled, *[1.0] * lacking])))
        worst_low.append(float(np.mean([*scaled, *[0.0] * lacking])))
    shaped = float(np.clip((limit.bound.number - quantity.low) / span, EDGE, 1.0 - EDGE))
    low = _low_end(np.asarray(worst_low), shaped, level)
    high = _high_end(np.asarray(worst_high), shaped, level)
    return quantity.low + span * low, quantity.low + span * high, ""


def _high_end(values: Array, limit: float, level: float) -> float:
    if not np.isin(values, (0.0, 1.0)).all():
        return upper_bound(np.clip(values, 0.0, 1.0), limit, level)
    return binomial_high(float(values.sum()), len(values), level)


def _low_end(values: Array, limit: float, level: float) -> float:
    if not np.isin(values, (0.0, 1.0)).all():
        return lower_bound(np.clip(values, 0.0, 1.0), limit, level)
    return binomial_low(float(values.sum()), len(values), level)


def read_answers(path: Path) -> list[Answer]:
    """Rows of a JSON-lines file with `prompt` (text or messages), `response` and perhaps `set`. Raises UserError."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file with one JSON object a line")
    answers = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                answers.append(replace(_answer(line, f"{path.name} line {number}"), where=f"row {number}"))
    if not answers:
        raise UserError(f"{path} holds no answers")
    return answers


def _answer(line: str, where: str) -> Answer:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise UserError(f'{where} is no JSON object; write {{"prompt": ..., "response": ...}}')
    for key in ("prompt", "response"):
        if key not in row:
            raise UserError(f"{where} has no `{key}`; its keys are {', '.join(row) or 'none'}")
    if not isinstance(row["response"], str):
        raise UserError(f"{where}: `response` must be text, got {type(row['response']).__name__}")
    reference = row.get("reference")
    if reference is not None and not isinstance(reference, str):
        raise UserError(f"{where}: `reference` is the reference's answer as text, got {type(reference).__name__}")
    turns = _turns(row["prompt"], where)
    prompt = row["prompt"] if isinstance(row["prompt"], str) else "\n\n".join(turn.content for turn in turns)
    return Answer(prompt, row["response"], row, turns, reference)


def _turns(prompt: Any, where: str) -> tuple[Message, ...]:
    """The turns of a conversation; none where the prompt is text."""
    if isinstance(prompt, str):
        return ()
    turns = [turn for turn in prompt if isinstance(turn, dict)] if isinstance(prompt, list) else []
    if not turns or not all(isinstance(turn.get("content"), str) for turn in turns) or len(turns) < len(prompt):
        raise UserError(f'{where}: `prompt` must be text or messages [{{"role": ..., "content": ...}}]')
    return tuple(Message(str(turn.get("role", "user")), turn["content"]) for turn in turns)
