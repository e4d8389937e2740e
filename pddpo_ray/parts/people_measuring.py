"""People in the measuring of a run's limits: as a limit's source, or as auditors of what a machine measured.

    answers ──► machine sources ──► people, by limit: all answers of the round that their limit acts on, or `audited`
                                    of them drawn evenly ──► costs, and what corrects the machine's

Each limit's questions are a batch of the annotation queue that is called like the phase, e.g. measure-answers-brand.
All batches open before the first is waited for. Machines' numbers are in the journal by then, so that a run which parks
asks nobody twice, neither people nor a judge.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.config import Config, QueueConfig
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.limits.asked_people import PeoplesQuestion, peoples_question
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import asked_first, within_budget
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.parts.measuring import DRAWS, Tokens, costs_of_values, tables_of
from pddpo_ray.parts.people import RiskOf, reached, stated_risk
from pddpo_ray.parts.questions import (
    UNKNOWN_RISK,
    Batch,
    Question,
    better_question,
    number_question,
    safety_question,
    value_of,
)
from pddpo_ray.records import Array, MeasuredValues, Measurement, Response
from pddpo_ray.theory.estimates.cost_estimate import estimate_from_shares
from pddpo_ray.theory.intervals import bounded_interval
from pddpo_ray.theory.seeds import generator

logger = logging.getLogger(__name__)

PEOPLE, NO_LABEL = "people", "no label"
References = Sequence[Response | None]
Chances = Mapping[str, float]
"""The chance with which people were to be asked about an answer, by its id."""
AskedOfPeople = tuple[MeasuredValues, Sequence[Response], References, str, int]
"""Machines' values, the answers, the reference's answers beside them, the phase, and the seed of who is asked."""


def people_of_limits(
    config: Config,
    journal: Journal,
    held_limits: Sequence[HeldLimit],
    categories_of: Mapping[str, Sequence[str]],
    scored: RiskOf | None = None,
    go_on: str = "pddpo train --run RUN --resume",
) -> PeopleOfLimits | None:
    """Who asks people about the limits of a run; None: nobody has to be asked.

    `categories_of` has each prompt's categories and sets by its id, for `risk_by_category`; `scored` is a model's risk.
    """
    if not any(limit.stated.asks_people for limit in held_limits):
        return None
    limits, factors = [limit.stated for limit in held_limits], [limit.factors for limit in held_limits]
    if config.certificate.mixtures:
        _demand_sets_apart(config, held_limits)
    return PeopleOfLimits(
        journal, limits, factors, config, risk_of=stated_risk(config, categories_of, scored), go_on=go_on
    )


def _demand_sets_apart(config: Config, limits: Sequence[HeldLimit]) -> None:
    """Raises UserError where sets share prompts, so that the number of audited answers varies by round."""
    for limit in limits:
        over = limit.stated.limit.quantity.over
        if limit.stated.audited is None or over is None:
            continue
        set_factor = 1.0 / config.prompts[over].share
        if not all(factor == 0 or np.isclose(factor, set_factor) for factor in limit.factors.values()):
            raise UserError(
                f"certificate.mixtures: prompts of `{over}` are in another set too, so that an audit under"
                f" {limit.stated.where} has another share of the answers in every round; leave mixtures out, and `pddpo"
                " certify RUN --policy mixture` draws anew"
            )


class PeopleOfLimits:
    """Asks people what a run's limits want of them. `acting` has P_s / P_0 of each limit by the prompt's tokens."""

    def __init__(
        self,
        journal: Journal,
        stated_limits: Sequence[StatedLimit],
        acting: Sequence[Mapping[Tokens, float]],
        config: Config,
        *,
        risk_of: RiskOf | None = None,
        go_on: str = "pddpo train --run RUN --resume",
    ) -> None:
        self._journal, self._limits, self._factors, self._risk_of = (
            journal,
            tuple(stated_limits),
            tuple(acting),
            risk_of,
        )
        self._cost_max, self._seed = config.dual.cost_max, config.seed
        self._has_mixtures = bool(config.certificate.mixtures)
        self._questions = {
            column: query for column, limit in enumerate(stated_limits) if (query := peoples_question(limit))
        }
        self._budgeted_columns = [
            column
            for column in self._questions
            if stated_limits[column].audited is None
            and stated_limits[column].asking.answers is not None
            and stated_limits[column].limit.quantity.kind != "logit"  # comparisons teach it
        ]
        self._labellers = {
            column: reached(
                _settings_with_deadline(config.people, stated_limits[column]),
                journal,
                partial(
                    estimate_from_shares,
                    labels_each=question.labels_each,
                    cost_max=config.dual.cost_max,
                    mode="logit_labels" if stated_limits[column].limit.quantity.kind == "logit" else "unsafe_rate",
                ),
                go_on,
            )
            for column, question in self._questions.items()
        }

    # --- in a round -----------------------------------------------------------------------------------------------

    def asked(self, *, for_estimates: bool) -> bool:
        """Whether people are asked about answers of the estimates, or about those that only teach."""
        return bool(self._questions if for_estimates else self._budgeted_columns)

    def of_round(
        self, measured: MeasuredValues, answers: Sequence[Response], references: References, phase: str, seed: int
    ) -> list[Measurement]:
        """What people say of the answers of a round's estimates, as the source of a limit or as auditors.

        `references` are the reference's answers beside them; [] where none is compared.
        """
        records: list[Measurement] = []
        chances, asked_rows, questions = self._round_questions(measured, answers, references, seed)
        self._open_batches(questions, phase)
        for column, rows in asked_rows.items():
            if not rows:
                continue
            labels = self._ask_people(column, questions[column], phase, chances.get(column))
            if self._limits[column].audited is not None:
                names, ids = [self._limits[column].limit.name], [answers[row].id for row in rows]
                self._log_bias(column, measured.values[rows, column], tables_of(labels, names, ids))
            records += labels
        return records

    def open_round(
        self, measured: MeasuredValues, answers: Sequence[Response], references: References, phase: str, seed: int
    ) -> None:
        """Opens the batches that `of_round` waits for, so that people can begin."""
        self._open_batches(self._round_questions(measured, answers, references, seed)[2], phase)

    def arrived(
        self, measured: MeasuredValues, answers: Sequence[Response], references: References, phase: str, seed: int
    ) -> bool:
        """Whether `of_round` has nothing to wait for."""
        questions = self._round_questions(measured, answers, references, seed)[2]
        return all(
            self._labellers[column].arrived(self._batch(column, group, phase))
            for column, group in questions.items()
            if group
        )

    def _round_questions(
        self, measured: MeasuredValues, answers: Sequence[Response], references: References, seed: int
    ) -> tuple[dict[int, Chances], dict[int, list[int]], dict[int, list[Question]]]:
        """By limit: the chances with which answers are audited, by id, the rows that people are asked about, and the
        questions."""
        chances, rows = self._draw_audits(measured, answers, seed)
        rows |= {column: self._rows_to_ask(column, answers, seed) for column in self._questions if column not in rows}
        return chances, rows, self._questions_about(rows, answers, references)

    def of_budget(
        self, answers: Sequence[Response], references: References, phase: str, seed: int
    ) -> list[Measurement]:
        """What people say of answers that only teach: where a limit has a budget (`answers`) for them."""
        asked_rows = {column: self._rows_to_ask(column, answers, seed) for column in self._budgeted_columns}
        questions = self._questions_about(asked_rows, answers, references)
        self._open_batches(questions, phase)
        return [
            label for column, group in questions.items() if group for label in self._ask_people(column, group, phase)
        ]

    def _questions_about(
        self, asked_rows: Mapping[int, Sequence[int]], answers: Sequence[Response], references: References
    ) -> dict[int, list[Question]]:
        """By limit, the question about each of these rows."""
        partners = references or [None] * len(answers)
        risks = [UNKNOWN_RISK] * len(answers) if self._risk_of is None else self._risk_of(answers)
        return {
            column: [
                replace(_question(self._questions[column], answers[row], partners[row]), risk=risks[row])
                for row in rows
            ]
            for column, rows in asked_rows.items()
        }

    def _draw_audits(
        self, measured: MeasuredValues, answers: Sequence[Response], seed: int
    ) -> tuple[dict[int, Chances], dict[int, list[int]]]:
        """By audited limit, the chances of answers to be shown to people, and the rows that are.

        Where the rounds certify mixtures, the answers asked about are drawn from all, so that the chance is the same
        in every round, and those without a number by the machine are not asked about.
        """
        chances: dict[int, Chances] = {}
        asked_rows: dict[int, list[int]] = {}
        for column in self._questions:
            limit = self._limits[column]
            if limit.audited is not None:
                rows = self._auditable_rows(column, measured, answers)
                drawn_from = self._rows_of_limit(column, answers) if self._has_mixtures else rows
                # a chance of a yes of a half is where a source is least sure
                margins = np.abs(measured.values[drawn_from, column] - 0.5).tolist()
                draws = asked_first(f"{limit.limit.name}, audited", margins, limit.unsure, limit.audited, seed)
                by_row = {drawn_from[index]: chance for index, chance in draws.items()}
                asked_rows[column] = [row for row in rows if row in by_row]
                chances[column] = {answers[row].id: by_row[row] for row in asked_rows[column]}
        return chances, asked_rows

    def _rows_to_ask(self, column: int, answers: Sequence[Response], seed: int) -> list[int]:
        """Rows of the answers that people are asked about, as the source of a limit."""
        limit, name = self._limits[column], self._limits[column].limit.name
        rows = self._rows_of_limit(column, answers)
        prompts = [answers[row].prompt.id for row in rows]
        return [rows[index] for index in within_budget(name, prompts, limit.asking.answers, seed)]

    def _auditable_rows(self, column: int, measured: MeasuredValues, answers: Sequence[Response]) -> list[int]:
        """Answers with a number by the machine: one without counts as the worst, whatever people say."""
        return [row for row in self._rows_of_limit(column, answers) if np.isfinite(measured.values[row, column])]

    def _rows_of_limit(self, column: int, answers: Sequence[Response]) -> list[int]:
        acting = self._factors[column]
        return [row for row, answer in enumerate(answers) if acting.get(answer.prompt.token_ids, 0.0) > 0]

    def _log_bias(self, column: int, machine: Array, audited: MeasuredValues) -> None:
        """Logs and journals how far the machine is off from people."""
        limit, people = self._limits[column], audited.people[:, 0]
        label_mask = np.isfinite(people)
        even_mask = label_mask & drawn_evenly(limit, audited.chance[:, 0])
        of_machine, of_people = (self._costs(column, values[even_mask]) for values in (machine, people))
        bias = bias_of(limit, of_machine, of_people, self._cost_max)
        name = limit.limit.name
        self._journal.add_metrics(
            {f"audit/{name}_asked": float(len(people)), f"audit/{name}_given": float(label_mask.sum())}
        )
        if bias is not None:
            self._journal.add_metrics({f"audit/{name}_bias": bias.value})
            logger.info("round %d, %s", self._journal.round, bias.text(limit))

    # --- of a certificate -----------------------------------------------------------------------------------------

    def of_draws(
        self, answers: Sequence[Response], references: References, shares: Mapping[str, float | None], place: str
    ) -> None:
        """Journals what people say of a certificate's draws, beside what machines do: of all under a limit of `shares`,
        or where they audit a share q of them, of those that an independent coin shows them."""
        names = [limit.limit.name for limit in self._limits]
        columns = {column: shares[names[column]] for column in self._questions if names[column] in shares}
        phase, ids = f"{DRAWS}{place}", [answer.id for answer in answers]
        by_machines = self._journal.measurements(self._journal.round, phase)
        measured = tables_of(by_machines, names, ids)
        shown_rows = {
            column: [
                row
                for row, coin in enumerate(self._shown_mask(len(answers), names[column], place, share))
                if coin and (share is None or np.isfinite(measured.values[row, column]))
            ]
            for column, share in columns.items()
        }
        questions = self._questions_about(shown_rows, answers, references)
        self._open_batches(questions, f"draws-{place}")
        for column, share in columns.items():

            def add(column: int = column, share: float | None = share) -> int:
                group = questions[column]
                chances = None if share is None else dict.fromkeys((question.item for question in group), share)
                labels = self._ask_people(column, group, f"draws-{place}", chances) if group else []
                self._journal.add_measurements(phase, labels, answers)
                return len(group)

            self._journal.once(f"people-{place}-{names[column]}", add)

    def _shown_mask(self, count: int, limit: str, place: str, share: float | None) -> list[bool]:
        """Which draws people are shown: by coins that follow from the seed; all, where they are the source."""
        if share is None:
            return [True] * count
        coins = generator(self._seed, "people of a certificate", self._journal.round, place, limit).random(count)
        return [bool(coin) for coin in coins < share]

    # --- asking ---------------------------------------------------------------------------------------------------

    def _open_batches(self, questions: Mapping[int, Sequence[Question]], phase: str) -> None:
        """All batches at once, so that people need not wait for each other."""
        for column, group in questions.items():
            if group:
                self._labellers[column].arrived(self._batch(column, group, phase))

    def _ask_people(
        self, column: int, questions: Sequence[Question], phase: str, chances: Chances | None = None
    ) -> list[Measurement]:
        """People's labels of each question, and those that they did not give. `chances`: of an audit."""
        batch, name = self._batch(column, questions, phase), self._limits[column].limit.name
        first = 0 if chances is None else 1  # of an audit the machine's own comes before
        records = []
        for item, votes in self._labellers[column].ask(batch).by_item(batch).items():
            labels = [Measurement(name, item, value_of(answer), "", PEOPLE, person=person) for answer, person in votes]
            labels += [Measurement(name, item, None, NO_LABEL, PEOPLE)] * (batch.labels_each - len(votes))
            chance = None if chances is None else chances[item]
            records += [replace(label, opinion=first + number, chance=chance) for number, label in enumerate(labels)]
        return records

    def _batch(self, column: int, questions: Sequence[Question], phase: str) -> Batch:
        return Batch(f"{phase}-{self._limits[column].limit.name}", questions, self._questions[column].labels_each)

    def _costs(self, column: int, values: Array) -> Array:
        return costs_of_values(self._limits[column], values, self._cost_max)[0]


def _question(question: PeoplesQuestion, answer: Response, reference: Response | None) -> Question:
    """The question about one answer; `reference` is the reference's to the same prompt, where they are compared."""
    if question.better:
        assert reference is not None
        return better_question(answer, reference, asks=question.text)
    if question.bounds is not None:
        assert question.text is not None
        return number_question(answer, question.bounds, asks=question.text)
    return safety_question(answer, asks=question.text)


@dataclass(frozen=True)
class Bias:
    """How much more a machine says than people do about the same answers, with a 95 % interval."""

    value: float
    low: float
    high: float
    answers: int

    def text(self, stated_limit: StatedLimit) -> str:
        """`brand: judge says yes 12 points more often than people (95 % interval 3 to 21, 40 answers)`, of a mean or a
        logit `tone: judge says 0.3 higher than people (...)`"""
        share = stated_limit.limit.quantity.kind == "rate"
        unit = 100 if share else 1
        low, high = sorted(unit * end * (1 if self.value >= 0 else -1) for end in (self.low, self.high))
        more, above = ("more", "higher") if self.value >= 0 else ("less", "lower")
        size = f"{unit * abs(self.value):.3g}"
        yes = "counts wins" if stated_limit.wins else "says yes"
        claim = f"{yes} {size} points {more} often" if share else f"says {size} {above}"
        note = "" if self.low > 0 or self.high < 0 else "; no bias is shown"
        return (
            f"{stated_limit.limit.name}: {stated_limit.source.kind} {claim} than people"
            f" (95 % interval {low:.3g} to {high:.3g}, {self.answers} answers{note})"
        )


def drawn_evenly(stated_limit: StatedLimit, chance: Array) -> NDArray[np.bool_]:
    """Which audited answers are an even draw: those of which the source was least sure were asked about in any case.
    [n] -> [n]"""
    asked_mask, drawn_mask = chance > 0, (chance > 0) & (chance < 1)
    return drawn_mask if stated_limit.unsure and drawn_mask.any() else asked_mask


def bias_of(stated_limit: StatedLimit, machine: Array, people: Array, cost_max: float) -> Bias | None:
    """From both costs of the same answers, drawn evenly; None where there is none. A logit lies in [-C, C]. [n] x2"""
    if not len(machine):
        return None
    sign = -1.0 if stated_limit.limit.at_least else 1.0  # a cost of `at_least` is turned round
    differences = sign * (machine - people)
    lowest, highest = stated_limit.limit.cost_range or (-cost_max, cost_max)
    low, high = bounded_interval(differences, lowest - highest, highest - lowest)
    return Bias(float(differences.mean()), low, high, len(differences))


def _settings_with_deadline(settings: QueueConfig, limit: StatedLimit) -> QueueConfig:
    """The settings with the limit's deadline, if any."""
    seconds = limit.asking.seconds
    return settings if seconds is None else settings.model_copy(update={"deadline_s": seconds})
