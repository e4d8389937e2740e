"""Answers measured in a run by the limits' own sources, within their budgets and deadlines.

Answers to one prompt that were drawn together are measured together or not at all, so that a budget leaves pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pddpo_ray.contracts import Measure
from pddpo_ray.limits.asked_people import peoples_question
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import Answer, Source, Unmeasured, ask, within_budget
from pddpo_ray.records import Array, MeasuredCosts, Response
from pddpo_ray.theory.estimates.cost_estimate import clipped_logit, logit_noise
from pddpo_ray.theory.multipliers.matrix_dual import label_variance

logger = logging.getLogger(__name__)

Tokens = tuple[int, ...]


class SourceMeasures:
    """Satisfies contracts.Measure. `sources` are None where `labels`, those of a world, measure.

    `acting` has P_s / P_0 of each limit by the prompt's tokens: where it is 0, or the prompt is not known, the limit
    asks nothing. `outside` says which answers are no text of the world's grammar: they have the worst value there is.
    """

    def __init__(
        self,
        stated: Sequence[StatedLimit],
        sources: Sequence[Source | None],
        acting: Sequence[Mapping[Tokens, float]],
        cost_max: float,
        *,
        labels: Measure | None = None,
        outside: Callable[[Response], bool] = lambda answer: False,
    ) -> None:
        self._stated, self._sources, self._acting = tuple(stated), tuple(sources), tuple(acting)
        self._cost_max, self._labels, self._outside = cost_max, labels, outside

    @property
    def versions(self) -> dict[str, str]:
        """What decides the values of each limit's source, by the limit's name."""
        versions = {}
        for stated, source in zip(self._stated, self._sources, strict=True):
            if stated.labelled:
                continue
            own = str(stated.source) if source is None else source.version
            people = peoples_question(stated)
            audited = f"{own}, audited by " if stated.audited is not None else ""
            versions[stated.limit.name] = own if people is None else f"{audited}{people.version}"
        return versions

    def __call__(
        self, answers: Sequence[Response], seed: int, references: Sequence[Response | None] = ()
    ) -> MeasuredCosts:
        """Costs of all answers under all limits. Raises RunError where more fail than may."""
        shape = (len(answers), len(self._stated))
        costs, unsafe = np.full((2, *shape), np.nan)
        result = MeasuredCosts(costs, np.zeros(shape), np.zeros(shape, dtype=bool), unsafe, np.zeros(shape))
        drawn = None if self._labels is None else self._labels(answers, seed, references)
        others = references or [None] * len(answers)
        for column, source in enumerate(self._sources):
            if self._stated[column].labelled or self._stated[column].source.kind in ("reference", "people"):
                continue  # the trainer knows how far an answer's policy is from the reference, people are asked later
            rows = [row for row, one in enumerate(answers) if self._acting[column].get(one.prompt.token_ids, 0.0) > 0]
            if source is None:
                assert drawn is not None
                result.costs[rows, column] = drawn.costs[rows, column]
                result.noise[rows, column] = drawn.noise[rows, column]
                result.unsafe[rows, column] = drawn.unsafe[rows, column]
                result.against[rows, column] = drawn.against[rows, column]
            else:
                self._ask(column, source, answers, others, rows, seed, result)
        return result

    def _ask(
        self,
        column: int,
        source: Source,
        answers: Sequence[Response],
        others: Sequence[Response | None],
        rows: list[int],
        seed: int,
        result: MeasuredCosts,
    ) -> None:
        """Fills one limit's column for the rows that its budget reaches.

        Under a limit on a difference to the reference its answers are measured in the same call, each once.
        """
        stated = self._stated[column]
        if stated.wins:
            rows = [row for row in rows if others[row] is not None]
        prompts = [answers[row].prompt.id for row in rows]
        asked = [rows[index] for index in within_budget(stated.limit.name, prompts, stated.asking.answers, seed)]
        theirs: dict[str, Response] = {}
        if stated.limit.quantity.versus == "reference":
            theirs = {other.id: other for row in asked if (other := others[row]) is not None}
            result.against[:, column] = np.nan
        pairs = [(answers[row], others[row] if stated.wins else None) for row in asked]
        values = self._values(stated, source, [*pairs, *((one, None) for one in theirs.values())], seed)
        of_others = dict(zip(theirs, values[len(asked) :], strict=True))
        for row, value in zip(asked, values[: len(asked)], strict=True):
            other = others[row]
            against = of_others.get(other.id) if other is not None else None
            if isinstance(value, Unmeasured) or isinstance(against, Unmeasured):
                result.failed[row, column] = True
                continue
            result.costs[row, column], result.noise[row, column] = cost_of_value(stated, value, self._cost_max)
            result.unsafe[row, column] = value if stated.limit.quantity.kind == "logit" else np.nan
            if against is not None:
                result.against[row, column] = stated.limit.cost(against)

    def _values(
        self, stated: StatedLimit, source: Source, pairs: Sequence[tuple[Response, Response | None]], seed: int
    ) -> list[float | Unmeasured]:
        """What the source says of answers, each with the reference's where it compares; no number for what failed."""
        name, worst = stated.limit.name, stated.worst
        off = Unmeasured("is no text of the grammar") if worst is None else worst
        values: list[float | Unmeasured] = [off] * len(pairs)
        inside = [index for index, (answer, _) in enumerate(pairs) if not self._outside(answer)]
        handed = [_answer(*pairs[index], stated) for index in inside]
        measured = ask(name, source, handed, replace(stated.asking, answers=None), seed=seed)
        if measured.failed:
            logger.warning(
                "limit %s: no number for %s (%d of %d: %s), which counts as the worst",
                name, "; ".join(measured.reasons), measured.failed, measured.asked, measured.why,
            )  # fmt: skip
        for index, value in zip(inside, measured.values, strict=True):
            assert value is not None  # no budget is left to `ask`
            values[index] = value
        return values


def cost_of_value(stated: StatedLimit, value: float, cost_max: float) -> tuple[float, float]:
    """A measured value as a cost, and the variance of its label noise."""
    each, kind = stated.asking.labels_each or 1, stated.limit.quantity.kind
    if kind == "logit":
        noise: Array = logit_noise(np.array([value]), each, cost_max)
        return float(clipped_logit([value], cost_max)[0]), float(noise[0])
    return stated.limit.cost(value), float(label_variance([value], each)[0]) if kind == "rate" else 0.0


def _answer(answer: Response, other: Response | None, stated: StatedLimit) -> Answer:
    """What a source is handed in a run; `other` is the reference's answer to the same prompt."""
    row = {"id": answer.id, "prompt": answer.prompt.text, "response": answer.text}
    if stated.limit.quantity.over is not None:
        row["set"] = stated.limit.quantity.over
    reference = None if other is None else other.text
    return Answer(answer.prompt.text, answer.text, row, answer.prompt.messages, reference, f"answer {answer.id}")


def with_nulls(table: Array) -> list[list[float | None]]:
    """A table for the journal, which has null for nan."""
    return [[None if np.isnan(cost) else cost for cost in row] for row in table.tolist()]


def costs_as_json(measured: MeasuredCosts) -> dict[str, Any]:
    """For the journal; `costs_from_json` reads it back."""
    tables = {name: with_nulls(getattr(measured, name)) for name in ("costs", "noise", "unsafe", "against")}
    return {**tables, "failed": np.argwhere(measured.failed).tolist()}


def costs_from_json(stored: Mapping[str, Any], shape: tuple[int, int]) -> MeasuredCosts:
    """[n, I]"""
    costs, noise, unsafe, against = (
        np.array(stored[name], dtype=np.float64).reshape(shape) for name in ("costs", "noise", "unsafe", "against")
    )
    failed = np.zeros(shape, dtype=bool)
    for row, column in stored["failed"]:
        failed[row, column] = True
    return MeasuredCosts(costs, noise, failed, unsafe, against)
