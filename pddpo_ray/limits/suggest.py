"""What the reference does now, and what is reachable by choosing among several of its answers to each prompt.

Training can reach what no sample showed, so this is advice for stating limits and no proof that they can be kept.
A noisy source measures twice: one measurement chooses the answer, the other says what was reached, since the smallest
of noisy numbers looks lower than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.limits.check import Checked, check_one, of_set
from pddpo_ray.limits.drawn import logits
from pddpo_ray.limits.quantities import Amount
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import Answer, Measure, Source, ask
from pddpo_ray.records import Array
from pddpo_ray.theory.multipliers.feasibility import Reach, reach

Opened = tuple[StatedLimit, Source | None]


@dataclass(frozen=True)
class Suggested:
    """One limit: what is now, and the best value that choosing among the sampled answers reaches."""

    now: Checked
    best: Amount | None = None
    together: Amount | None = None
    """Its value where all limits are kept by the largest common margin."""
    broken: float | None = None
    """Share of its prompts of which no sampled answer keeps it."""

    def as_json(self) -> dict[str, Any]:
        return {
            **self.now.as_json(),
            "best": None if self.best is None else self.best.number,
            "together": None if self.together is None else self.together.number,
            "prompts_broken": self.broken,
        }


@dataclass(frozen=True)
class Suggestion:
    """All limits, and whether choosing among the sampled answers keeps them at once."""

    limits: tuple[Suggested, ...]
    jointly: bool | None
    """None where no limit could be measured on every prompt."""
    answers_each: float
    """Mean number of answers per prompt."""


def suggest(limits: Sequence[Opened], answers: Sequence[Answer]) -> Suggestion:
    """Advice from several answers to each prompt. Raises UserError where prompts have single answers."""
    prompts = list(dict.fromkeys(answer.prompt for answer in answers))
    each = len(answers) / len(prompts)
    if each <= 1.0:
        raise UserError(
            "every prompt has a single answer, so nothing can be chosen: give several rows for each prompt, or let a"
            " model write them with --model"
        )
    now = [check_one(limit, source, answers) for limit, source in limits]
    tables = [_tables(limit, source, answers, prompts) for limit, source in limits if source is not None]
    reached = _reach_by_choosing([limit for limit, source in limits if source is not None], tables)
    indices = iter(range(len(tables)))
    suggested = []
    for (limit, source), checked in zip(limits, now, strict=True):
        index = None if source is None or reached is None else next(indices)
        suggested.append(
            Suggested(checked) if index is None or reached is None else _suggestion(limit, checked, reached, index)
        )
    return Suggestion(tuple(suggested), None if reached is None else reached.jointly, each)


@dataclass(frozen=True, eq=False)
class Tables:
    """Costs minus the limit by prompt and answer [X, n]; NaN where there is no number."""

    choose: Array
    measure: Array
    inside: Array
    """1 for prompts of the limit's set. [X]"""


def _tables(limit: StatedLimit, source: Source, answers: Sequence[Answer], prompts: Sequence[str]) -> Tables:
    set_ids = {id(answer) for answer in of_set(limit, answers)}
    index = {prompt: number for number, prompt in enumerate(prompts)}
    columns: dict[str, int] = {}
    cells = []
    for answer in answers:
        columns[answer.prompt] = columns.get(answer.prompt, -1) + 1
        cells.append((index[answer.prompt], columns[answer.prompt]))
    width = max(columns.values()) + 1
    inside = [(answer, cell) for answer, cell in zip(answers, cells, strict=True) if id(answer) in set_ids]
    tables = []
    for measure in source.halves or (source.measure,):
        table = np.full((len(prompts), width), np.nan)
        for (_, cell), excess in zip(
            inside, _excess(limit, source, measure, [answer for answer, _ in inside]), strict=True
        ):
            table[cell] = excess
        tables.append(table)
    rows = np.zeros(len(prompts))
    rows[[cell[0] for _, cell in inside]] = 1.0
    return Tables(tables[0], tables[-1], rows)


def _excess(stated_limit: StatedLimit, source: Source, measure: Measure, answers: Sequence[Answer]) -> Array:
    """Cost minus limit of each answer. [n]"""
    limit = stated_limit.limit
    measured = ask(limit.name, replace(source, measure=measure), answers, stated_limit.asking)
    values = np.array([value if isinstance(value, float) else np.nan for value in measured.values])
    if limit.quantity.kind == "logit":
        values = logits(values, stated_limit.asking.labels_each or 1, limit.quantity.high).values
    return np.array([limit.cost(float(value)) for value in values]) - limit.cost_limit


def _reach_by_choosing(limits: Sequence[StatedLimit], tables: Sequence[Tables]) -> Reach | None:
    """What choosing among the answers that every limit could measure reaches; None where nothing is left."""
    if not tables:
        return None
    mask = np.all([(table.inside[:, None] == 0) | ~np.isnan(table.choose + table.measure) for table in tables], axis=0)
    # a row has as many answers as its prompt; the columns behind them are empty for every limit
    mask &= np.any([~np.isnan(table.choose) for table in tables], axis=0)
    rows = mask.any(axis=1)
    inside = np.array([table.inside[rows] for table in tables])
    if not rows.any() or not inside.any(axis=1).all():
        return None
    weights = np.full(int(rows.sum()), 1.0 / rows.sum())
    factors = inside / (inside @ weights)[:, None]
    excess = np.nan_to_num(np.array([table.choose[rows] for table in tables]))
    second = np.nan_to_num(np.array([table.measure[rows] for table in tables]))
    scales = [_scale(limit, table) for limit, table in zip(limits, excess, strict=True)]
    noisy = None if np.array_equal(excess, second) else second
    return reach(excess, weights, scales=scales, factors=factors, measured=noisy, answers=mask[rows])


def _scale(limit: StatedLimit, excess: Array) -> float:
    ends = limit.limit.cost_range
    return (ends[1] - ends[0]) if ends is not None else float(np.ptp(excess)) or 1.0


def _suggestion(stated_limit: StatedLimit, now: Checked, reached: Reach, index: int) -> Suggested:
    limit = stated_limit.limit

    def value(excess: float) -> Amount:
        bound = limit.bound.number
        return Amount(limit.quantity, bound - excess if limit.at_least else bound + excess)

    best, together = value(float(reached.lowest[index])), value(float(reached.together[index]))
    return Suggested(now, best, together, float(reached.broken[index]))
