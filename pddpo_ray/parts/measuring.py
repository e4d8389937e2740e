"""Answers measured in a run by the limits' own sources, within their budgets and deadlines, and what learners and
estimates read of the journal's records of them.

Answers to one prompt that were drawn together are measured together or not at all, so that a budget leaves pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pddpo_ray.contracts import Measure
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.journal.rows import SAFETY
from pddpo_ray.limits.asked_people import peoples_question
from pddpo_ray.limits.reading import FEEDBACK, StatedLimit
from pddpo_ray.limits.sources import Answer, Source, Unmeasured, ask, within_budget
from pddpo_ray.records import Array, MeasuredValues, Measurement, Response
from pddpo_ray.theory.estimates.cost_estimate import (
    MeasuredAnswer,
    Tokens,
    clipped_logit,
    corrected_by_people,
    label_variance,
    logit_noise,
)

logger = logging.getLogger(__name__)

MACHINE = "machine-"
"""What the phase of machines' numbers begins with, before people are asked about the same answers."""
BY_OTHERS = ("reference", "people", "model", FEEDBACK)
"""Sources whose values the trainer, the people's queue or feedback gives."""
DRAWS = "measure-"
"""What the phase of a batch of a certificate's draws begins with."""


class SourceMeasures:
    """Satisfies contracts.Measure. `sources` are None where `labels`, those of a world, measure.

    `acting` has P_s / P_0 of each limit by the prompt's tokens: where it is 0, or the prompt is not known, the limit
    asks nothing. `outside` says which answers are no text of the world's grammar: they have the worst value there is.
    """

    def __init__(
        self,
        stated_limits: Sequence[StatedLimit],
        sources: Sequence[Source | None],
        acting: Sequence[Mapping[Tokens, float]],
        cost_max: float,
        *,
        labels: Measure | None = None,
        outside: Callable[[Response], bool] = lambda answer: False,
    ) -> None:
        self._limits, self._sources, self._factors = tuple(stated_limits), tuple(sources), tuple(acting)
        self._cost_max, self._labels, self._is_outside = cost_max, labels, outside

    @property
    def versions(self) -> dict[str, str]:
        """What decides the values of each limit's source, by the limit's name."""
        versions = {}
        for limit, source in zip(self._limits, self._sources, strict=True):
            if limit.labelled:
                continue
            version = str(limit.source) if source is None else source.version
            people = peoples_question(limit)
            prefix = f"{version}, audited by " if limit.audited is not None else ""
            versions[limit.limit.name] = version if people is None else f"{prefix}{people.version}"
        return versions

    def __call__(
        self, answers: Sequence[Response], seed: int, references: Sequence[Response | None] = ()
    ) -> MeasuredValues:
        """Values of all answers under all limits. Raises RunError where more fail than may."""
        result = MeasuredValues.nothing(len(answers), len(self._limits))
        labels = None if self._labels is None else self._labels(answers, seed, references)
        partners = references or [None] * len(answers)
        for column, source in enumerate(self._sources):
            if self._limits[column].source.kind in BY_OTHERS:
                continue
            rows = [
                row for row, answer in enumerate(answers) if self._factors[column].get(answer.prompt.token_ids, 0.0) > 0
            ]
            if source is None:
                assert labels is not None
                result.values[rows, column] = labels.values[rows, column]
                result.against[rows, column] = labels.against[rows, column]
            else:
                self._fill_column(column, source, answers, partners, rows, seed, result)
        return result

    def _fill_column(
        self,
        column: int,
        source: Source,
        answers: Sequence[Response],
        partners: Sequence[Response | None],
        rows: list[int],
        seed: int,
        result: MeasuredValues,
    ) -> None:
        """Fills one limit's column for the rows that its budget reaches.

        Under a limit on a difference to the reference its answers are measured in the same call, each once.
        """
        limit = self._limits[column]
        if limit.wins:
            rows = [row for row in rows if partners[row] is not None]
        prompts = [answers[row].prompt.id for row in rows]
        asked_rows = [rows[index] for index in within_budget(limit.limit.name, prompts, limit.asking.answers, seed)]
        references: dict[str, Response] = {}
        if limit.limit.quantity.versus == "reference":
            references = {reference.id: reference for row in asked_rows if (reference := partners[row]) is not None}
        pairs = [(answers[row], partners[row] if limit.wins else None) for row in asked_rows]
        values = self._values(limit, source, [*pairs, *((answer, None) for answer in references.values())], seed)
        reference_values = dict(zip(references, values[len(asked_rows) :], strict=True))
        for row, value in zip(asked_rows, values[: len(asked_rows)], strict=True):
            reference = partners[row]
            against = reference_values.get(reference.id) if reference is not None else None
            if isinstance(value, Unmeasured) or isinstance(against, Unmeasured):
                result.missing[row, column] = next(
                    failure.reason for failure in (value, against) if isinstance(failure, Unmeasured)
                )
                continue
            result.values[row, column] = value
            if against is not None:
                result.against[row, column] = against

    def _values(
        self, limit: StatedLimit, source: Source, pairs: Sequence[tuple[Response, Response | None]], seed: int
    ) -> list[float | Unmeasured]:
        """The source's values of answers, each with the reference's where it compares; `Unmeasured` where it fails."""
        name, worst = limit.limit.name, limit.worst
        outside_value = Unmeasured("is no text of the grammar") if worst is None else worst
        values: list[float | Unmeasured] = [outside_value] * len(pairs)
        indices = [index for index, (answer, _) in enumerate(pairs) if not self._is_outside(answer)]
        items = [_answer(*pairs[index], limit) for index in indices]
        measured = ask(name, source, items, replace(limit.asking, answers=None), seed=seed)
        if measured.failed:
            logger.warning(
                "limit %s: no number for %s (%d of %d: %s), which counts as the worst",
                name, "; ".join(measured.reasons), measured.failed, measured.asked, measured.why,
            )  # fmt: skip
        for index, value in zip(indices, measured.values, strict=True):
            assert value is not None  # no budget is left to `ask`
            values[index] = value
        return values


def with_model(
    measure: Measure, stated_limits: Sequence[StatedLimit], costs: Callable[[Sequence[Response]], Array]
) -> Measure:
    """A measure that also has the limits measured by feedback's cost model: its chance of "unsafe", sigmoid(cost), or
    for a mean its score."""
    columns = [column for column, limit in enumerate(stated_limits) if limit.source.named == "model"]
    means = [stated_limits[column].limit.quantity.kind == "mean" for column in columns]

    def measured(answers: Sequence[Response], seed: int, references: Sequence[Response | None] = ()) -> MeasuredValues:
        result, scores = measure(answers, seed, references), costs(answers)[:, None]
        result.values[:, columns] = np.where(means, scores, expit(scores))
        return result

    return measured if columns else measure


def costs_of_values(stated_limit: StatedLimit, values: Array, cost_max: float) -> tuple[Array, Array]:
    """Measured values as costs, and the variance of their label noise; nan stays. A logit lies in [-C, C]. [n] x2"""
    labels_each, kind, mask = (
        stated_limit.asking.labels_each or 1,
        stated_limit.limit.quantity.kind,
        np.isfinite(values),
    )
    costs, noise = np.full(values.shape, np.nan), np.zeros(values.shape)
    if kind == "logit":
        costs[mask] = clipped_logit(values[mask], cost_max)
        if stated_limit.source.kind != "model":
            noise[mask] = logit_noise(values[mask], labels_each, cost_max)
        return costs, noise
    if stated_limit.source.kind == "model":
        labels_each = 1  # its chance of a yes is no share of labels
    costs[mask] = [stated_limit.limit.cost(value) for value in values[mask].tolist()]
    if kind == "rate":
        noise[mask] = label_variance(values[mask], labels_each)
    return costs, noise


def _answer(answer: Response, other: Response | None, limit: StatedLimit) -> Answer:
    """Input of a source in a run; `other` is the reference's answer to the same prompt."""
    row = {"id": answer.id, "prompt": answer.prompt.text, "response": answer.text}
    if limit.limit.quantity.over is not None:
        row["set"] = limit.limit.quantity.over
    reference = None if other is None else other.text
    return Answer(answer.prompt.text, answer.text, row, answer.prompt.messages, reference, f"answer {answer.id}")


# --- records of the journal, and tables of costs --------------------------------------------------------------------


def records_of(
    stated_limits: Sequence[StatedLimit], answers: Sequence[Response], measured: MeasuredValues
) -> list[Measurement]:
    """A record for each answer that a source was asked about, by limit."""
    records = []
    for row, answer in enumerate(answers):
        for column, limit in enumerate(stated_limits):
            value, why = _number(measured.values[row, column]), measured.missing.get((row, column), "")
            if value is not None or why:
                against = _number(measured.against[row, column])
                records.append(Measurement(limit.limit.name, answer.id, value, why, str(limit.source), against=against))
    return records


def tables_of(records: Iterable[Measurement], limits: Sequence[str], answers: Sequence[str]) -> MeasuredValues:
    """By answer and limit the mean of its labels, nan where one is missing or nobody was asked; audits apart. Skips
    other answers' records."""
    rows, columns = ({name: index for index, name in enumerate(names)} for names in (answers, limits))
    measured = MeasuredValues.nothing(len(rows), len(columns))
    labels: dict[tuple[int, int, bool], list[float]] = {}
    for record in records:
        if record.answer not in rows:
            continue
        cell, audits = (rows[record.answer], columns[record.limit]), record.chance is not None
        cell_labels = labels.setdefault((*cell, audits), [])
        cell_labels.append(np.nan if record.value is None else record.value)
        if record.chance is not None:
            measured.chance[cell] = record.chance
            continue
        measured.against[cell] = np.nan if record.against is None else record.against
        if record.missing:
            measured.missing[cell] = record.missing
    for (row, column, audits), cell_labels in labels.items():
        (measured.people if audits else measured.values)[row, column] = sum(cell_labels) / len(cell_labels)
        numbers = [label for label in cell_labels if not np.isnan(label)]
        if not audits and 0 < len(numbers) < len(cell_labels):
            measured.parts[row, column] = sum(numbers) / len(cell_labels), 1.0 - len(numbers) / len(cell_labels)
    return measured


def labels_of_answers(
    journal: JournalReader, rounds: Iterable[int], limit: str, answers: Sequence[str]
) -> MeasuredValues:
    """The same of the labels that feedback gave in these rounds: the share of them that say unsafe. [n, 1] each"""
    records = (record for number in rounds for record in journal.measurements(number, SAFETY, limit))
    return tables_of(records, [limit], answers)


def numbers_of(values: Array) -> list[float | None]:
    """Values of answers, None where there is no number. [n]"""
    return [_number(value) for value in values.tolist()]


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """Costs of answers and what an estimate has to know of each. [n, I] each"""

    costs: Array
    noise: Array
    failed: NDArray[np.bool_]
    """Whether a source was asked and gave no number; elsewhere nan says that it was not asked."""
    against: Array
    """The cost of the reference's answer under a limit on the difference, nan: not known; 0 under others."""
    people: Array
    """Costs by people's audit, nan: they gave none."""
    chance: Array
    ends: Array
    """Lowest and highest cost of an answer without some of its labels; nan elsewhere. [n, 2, I]"""

    @property
    def relative(self) -> Array:
        """Costs as the limits state them: less the reference's."""
        return self.costs - self.against

    @property
    def numbers(self) -> Array:
        """The same corrected by people's audit, which is what certificates bet on: f + (xi/q)(y - f)."""
        audit_mask = self.chance > 0
        return corrected_by_people(self.relative, self.people, audit_mask, np.where(audit_mask, self.chance, 1.0))


def table_of(
    records: Iterable[Measurement], stated_limits: Sequence[StatedLimit], answers: Sequence[str], cost_max: float
) -> MeasuredTable:
    """The costs of these answers, from the journal's records of them. `cost_max` bounds logits."""
    measured = tables_of(records, [limit.limit.name for limit in stated_limits], answers)
    costs, noise, against, people = (np.zeros(measured.values.shape) for _ in range(4))
    for column, limit in enumerate(stated_limits):
        costs[:, column], noise[:, column] = costs_of_values(limit, measured.values[:, column], cost_max)
        people[:, column] = costs_of_values(limit, measured.people[:, column], cost_max)[0]
        if limit.limit.quantity.versus == "reference":
            against[:, column] = costs_of_values(limit, measured.against[:, column], cost_max)[0]
    failed = np.zeros(costs.shape, dtype=bool)
    for cell in measured.missing:
        failed[cell] = True
    ends = np.full((len(answers), 2, len(stated_limits)), np.nan)
    for (row, column), (base, share) in measured.parts.items():
        label = np.array(_label_range(stated_limits[column]), dtype=np.float64)
        ends[row, :, column] = np.sort(costs_of_values(stated_limits[column], base + share * label, cost_max)[0])
    return MeasuredTable(costs, noise, failed, against, people, measured.chance, ends)


def measured_answers(
    table: MeasuredTable, answers: Sequence[Response], draws: Sequence[str], number: int
) -> list[MeasuredAnswer]:
    """The rows of a table as answers of a round, each of its draw."""
    columns = (table.costs, table.noise, table.failed, table.against, table.people, table.chance, table.ends)
    return [
        MeasuredAnswer(number, answer.prompt.token_ids, answer.token_ids, draw, *(column[row] for column in columns))
        for row, (answer, draw) in enumerate(zip(answers, draws, strict=True))
    ]


def _label_range(limit: StatedLimit) -> tuple[float | None, float | None]:
    """Lowest and highest single label; None: nobody stated it."""
    return (0.0, 1.0) if limit.limit.quantity.kind == "logit" else (limit.scale.low, limit.scale.high)


class MeasuredAnswers:
    """The measured answers of all phases of a run whose names match `phases`, those of earlier rounds too.

    `together`: the number of answers in a draw, by phase; else one. `cost_max` bounds logits. `newest`:
    fits learn from the last round's answers alone.
    """

    def __init__(
        self,
        journal: Journal,
        stated_limits: Sequence[StatedLimit],
        cost_max: float,
        phases: str,
        together: Mapping[str, int] | None = None,
        newest: bool = False,
    ) -> None:
        self._journal, self._limits, self._cost_max, self._newest_only = journal, tuple(stated_limits), cost_max, newest
        self._group_sizes = together or {}
        self._answers: dict[tuple[int, str], list[MeasuredAnswer]] = {}
        self._prompt_names: dict[Tokens, str] = {}
        self.known: set[str] = set()
        """Ids of the answers."""
        entries = [entry for entry in journal.phases(like=phases) if 0 < entry.round < journal.next_round]
        samples = {answer.id: answer for answer in journal.samples()} if entries else {}
        for entry in entries:
            self.keep(entry.phase, [samples[name] for name in entry.payload["ids"]], entry.round)

    def keep(self, phase: str, answers: Sequence[Response], number: int | None = None) -> None:
        """Answers of a phase whose measurements the journal holds; of its present round, or of `number`."""
        round_ = self._journal.round if number is None else number
        records, ids = self._journal.measurements(round_, phase), [answer.id for answer in answers]
        table = table_of(records, self._limits, ids, self._cost_max)
        group_size = self._group_sizes.get(phase)
        draws = [f"{round_}-{row // group_size}" if group_size else f"{phase}-{name}" for row, name in enumerate(ids)]
        self.known.update(ids)
        self._prompt_names |= {answer.prompt.token_ids: answer.prompt.id for answer in answers}
        self._answers[round_, phase] = measured_answers(table, answers, draws, round_)

    def of(self, number: int, phase: str) -> list[MeasuredAnswer]:
        return self._answers.get((number, phase), [])

    @property
    def all(self) -> list[MeasuredAnswer]:
        """Every one so far, in order of rounds."""
        return self.not_withdrawn(answer for key in sorted(self._answers) for answer in self._answers[key])

    @property
    def teaching(self) -> list[MeasuredAnswer]:
        """Those that a fit learns from: every one, or those of the last round that has any."""
        if not self._newest_only:
            return self.all
        last = max((number for (number, _), answers in self._answers.items() if answers), default=0)
        return [answer for answer in self.all if answer.round == last]

    def not_withdrawn(self, measured: Iterable[MeasuredAnswer]) -> list[MeasuredAnswer]:
        withdrawn_ids = self._journal.withdrawn
        return [answer for answer in measured if self._prompt_names.get(answer.prompt) not in withdrawn_ids]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
