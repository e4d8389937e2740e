"""Reads a run's journal: what report, serve, compare, evaluate and the driver itself ask of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Engine, Select, Table, func, select, union

from pddpo_ray.errors import UserError
from pddpo_ray.journal import rows, schema
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.read_only import open_to_read
from pddpo_ray.journal.rows import DeliveryEntry, DualEntry, PairEntry, PhaseEntry, RunEntry, VersionEntry, record_of
from pddpo_ray.journal.served import withdrawn_prompts
from pddpo_ray.records import (
    CostEstimate,
    Delivery,
    Measurement,
    Pair,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Verdict,
    answers_seen,
)

Json = Any


class JournalReader:
    """One run of a database. The run may be in progress: each query sees a state between two of its commits."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self.engine = engine
        self.run_id = run_id

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def next_round(self) -> int:
        """The first round that is not finished."""
        table = schema.round_
        last = select(func.max(table.c.round)).where(table.c.run == self.run_id, table.c.finished_ms.is_not(None))
        with reading(self.engine) as connection:
            return (connection.execute(last).scalar() or 0) + 1

    def _read(self, query: Select[Any]) -> Sequence[Any]:
        with reading(self.engine) as connection:
            return connection.execute(query).all()

    def _of_run(self, table: Table, round_: int | None = None) -> Select[Any]:
        query = select(table).where(table.c.run == self.run_id)
        return query if round_ is None else query.where(table.c.round == round_)

    @property
    def about(self) -> RunEntry:
        return record_of(RunEntry, self._read(select(schema.run).where(schema.run.c.id == self.run_id))[0])

    @property
    def recipe(self) -> Json:
        """The resolved recipe that the run was created with."""
        return self.about.recipe

    def versions(self) -> list[VersionEntry]:
        """All versions, by number."""
        return [
            record_of(VersionEntry, row, version=record_of(PolicyVersion, row), workers=tuple(row.workers))
            for row in self._read(self._of_run(schema.version).order_by(schema.version.c.number))
        ]

    @property
    def policies(self) -> list[PolicyVersion]:
        """The policy of every round that has one, by round: the last cost version of the round.

        Fits from before the first round serve other ends.
        """
        last = {entry.round: entry.version for entry in self.versions() if entry.stage == "cost" and entry.round > 0}
        return [last[number] for number in sorted(last)]

    def prompts(self) -> dict[str, Prompt]:
        return {row.id: rows.prompt_record(row) for row in self._read(self._of_run(schema.prompt))}

    @property
    def withdrawn(self) -> frozenset[str]:
        """Names of the prompts whose senders took them back: nothing later learns from answers to them."""
        return withdrawn_prompts(self.engine, self.run_id)

    def samples(self, round_: int | None = None, purpose: str | None = None) -> list[Response]:
        """Answers in the order in which they were added, of one round and purpose or of all."""
        table = schema.sample
        query = self._joined_samples().order_by(table.c.round, table.c.purpose, table.c.position)
        if round_ is not None:
            query = query.where(table.c.round == round_)
        if purpose is not None:
            query = query.where(table.c.purpose == purpose)
        return self._responses(query)

    def _joined_samples(self) -> Select[Any]:
        table, prompt = schema.sample, schema.prompt
        return (
            select(
                table,
                prompt.c.token_ids.label("prompt_tokens"),
                prompt.c.text.label("prompt_text"),
                prompt.c.messages.label("prompt_messages"),
            )
            .join(prompt, (prompt.c.run == table.c.run) & (prompt.c.id == table.c.prompt))
            .where(table.c.run == self.run_id)
        )

    def _responses(self, query: Select[Any]) -> list[Response]:
        prompts: dict[str, Prompt] = {}
        responses = []
        for row in self._read(query):
            if row.prompt not in prompts:
                messages = rows.messages_of(row.prompt_messages)
                prompts[row.prompt] = Prompt(row.prompt, tuple(row.prompt_tokens), row.prompt_text, messages)
            responses.append(rows.response_record(row, prompts[row.prompt]))
        return responses

    def safety(self, round_: int | None = None, constraint: str | None = None) -> list[SafetyLabels]:
        """Safety labels by answer, in the order in which the answers were asked."""
        table = schema.measurement.c
        # of a run's millions of labels only what decides a verdict
        query = self._measurement_query(
            (table.sample, table.limit, table.value, table.missing), round_, rows.SAFETY, constraint
        )
        grouped: dict[tuple[str, str], list[Verdict]] = {}
        for row in self._read(query):
            grouped.setdefault((row.sample, row.limit), []).append(rows.verdict_of(row.value, row.missing))
        answers = {response.id: response for response in self.samples(round_)}
        return [SafetyLabels(answers[sample], tuple(labels), name) for (sample, name), labels in grouped.items()]

    def unsafe_share(self, round_: int, constraint: str) -> float | None:
        """Share of a round's safety labels that say unsafe; None without a label."""
        mean = (func.avg(schema.measurement.c.value),)
        share: float | None = self._read(self._measurement_query(mean, round_, rows.SAFETY, constraint).order_by(None))[
            0
        ][0]
        return share

    def measurements(
        self,
        round_: int | None = None,
        phase: str = "%",
        limit: str | None = None,
        answers: Sequence[str] | None = None,
    ) -> list[Measurement]:
        """What was measured of answers, of all or of these by their ids, in their order; `phase` is an SQL pattern
        (`measure-%`)."""
        query = self._measurement_query((schema.measurement,), round_, phase, limit)
        if answers is not None:
            query = query.where(schema.measurement.c.sample.in_(answers))
        return [rows.measurement_record(row) for row in self._read(query)]

    def measured(self) -> Iterator[tuple[int, str, Measurement]]:
        """Every measurement with its round and what it was for, round by round; a certificate's draws are in rounds
        below 0."""
        table = schema.measurement.c
        numbers = select(table.round).where(table.run == self.run_id).distinct().order_by(table.round)
        for number in self._read(numbers):
            for row in self._read(self._measurement_query((schema.measurement,), number.round, "%", None)):
                yield row.round, row.phase, rows.measurement_record(row)

    def _measurement_query(
        self, columns: Sequence[Any], round_: int | None, phase: str, limit: str | None
    ) -> Select[Any]:
        table = schema.measurement.c
        query = select(*columns).where(table.run == self.run_id)
        if round_ is not None:
            query = query.where(table.round == round_)
        if phase != "%":
            query = query.where(table.phase.like(phase))
        if limit is not None:
            query = query.where(table.limit == limit)
        return query.order_by(table.round, table.phase, table.limit, table.position, table.opinion)

    def pair_questions(self, round_: int | None = None) -> list[Pair]:
        """Pairs in the order in which they were chosen, labelled or not."""
        # Pairs are read before the answers that they name, which a driver writes no later: a pair that it adds
        # meanwhile is left out, and never lacks its answers.
        query = self._of_run(schema.pair, round_).order_by(schema.pair.c.round, schema.pair.c.position)
        chosen = self._read(query)
        # Only the answers that the pairs name: a run has many times more.
        sides = [
            select(side).where(
                schema.pair.c.run == self.run_id, *([] if round_ is None else [schema.pair.c.round == round_])
            )
            for side in (schema.pair.c.first, schema.pair.c.second)
        ]
        samples = self._joined_samples().where(schema.sample.c.id.in_(union(*sides)))
        answers = {response.id: response for response in self._responses(samples)}
        return [Pair(row.id, answers[row.first], answers[row.second]) for row in chosen]

    def pairs(self, round_: int | None = None) -> list[PairEntry]:
        """Labelled pairs with their round and labeller, in order."""
        table, pair = schema.pair_label, schema.pair
        query = (
            select(table, pair.c.round)
            .join(pair, (pair.c.run == table.c.run) & (pair.c.id == table.c.pair))
            .where(table.c.run == self.run_id)
            .order_by(pair.c.round, pair.c.position, table.c.source)
        )
        if round_ is not None:
            query = query.where(pair.c.round == round_)
        labels = self._read(query)
        questions = {question.id: question for question in self.pair_questions(round_)}
        return [
            PairEntry(row.round, row.labeller, row.source, rows.labelled_pair_record(row, questions[row.pair]))
            for row in labels
        ]

    def dual_steps(self) -> list[DualEntry]:
        """Every step of every multiplier, by round."""
        table = schema.dual_step
        cost_max = (self.recipe.get("dual") or {}).get("cost_max")
        count = _response_count(self.recipe.get("feedback") or {})
        return [
            record_of(
                DualEntry,
                row,
                estimate=record_of(
                    CostEstimate,
                    row,
                    within_variance=None,
                    bounds=None,
                    rounds_late=0,
                    moved=0.0,
                    **count,
                    cost_max=cost_max if row.mode == "logit_labels" else None,
                ),
            )
            for row in self._read(self._of_run(table).order_by(table.c.round, table.c.constraint))
        ]

    def deliveries(self) -> list[DeliveryEntry]:
        """Every hand-over, in the order in which they happened."""
        return [
            record_of(DeliveryEntry, row, delivery=record_of(Delivery, row))
            for row in self._read(self._of_run(schema.delivery).order_by(schema.delivery.c.id))
        ]

    def metrics(self) -> dict[int, dict[str, float]]:
        """{round: {name: value}}; a number that does not exist reads as nan."""
        by_round: dict[int, dict[str, float]] = {}
        table = schema.metric
        for row in self._read(self._of_run(table).order_by(table.c.round, table.c.name)):
            by_round.setdefault(row.round, {})[row.name] = math.nan if row.value is None else row.value
        return by_round

    def phases(self, round_: int | None = None, like: str = "%") -> list[PhaseEntry]:
        """Finished phases in the order in which they ended; `like` is a pattern of their names (`prompts-%`)."""
        table = schema.phase
        query = self._of_run(table, round_).order_by(table.c.round, table.c.finished_ms, table.c.started_ms)
        if like != "%":
            query = query.where(table.c.phase.like(like))
        return [record_of(PhaseEntry, row) for row in self._read(query)]


def read_journal(url_or_path: str | Path, run_id: str | None = None) -> JournalReader:
    """Opens a run to read it and writes nothing: by its identity, by its name where only one is called so, or, without
    a `run_id`, the one run that the database holds.

        with read_journal("runs/demo/journal.sqlite") as journal:
            print(journal.metrics())

    Raises UserError if there is no journal, if it has no such run, or several and none was named.
    """
    engine = open_to_read(url_or_path)
    try:
        return JournalReader(engine, _stored_run(engine, run_id))
    except BaseException:
        engine.dispose()
        raise


def _response_count(feedback: Mapping[str, Any]) -> dict[str, int]:
    """Answers behind an estimate of a run before 0.3 in which people labelled beside a model."""
    if "unsure" not in feedback:
        return {}
    return {"responses": answers_seen(*(int(feedback[key]) for key in ("unsure", "random", "responses")))}


def _stored_run(engine: Engine, run_name: str | None) -> str:
    with reading(engine) as connection:
        rows = connection.execute(select(schema.run.c.id, schema.run.c.name, schema.run.c.part_of)).all()
    whole = [row.id for row in rows if row.part_of is None]
    matching = whole if run_name is None else [row.id for row in rows if row.id == run_name]
    matching = matching or [row.id for row in rows if row.name == run_name]
    if len(matching) == 1:
        return str(matching[0])
    names = ", ".join(sorted(row.name or row.id for row in rows)) or "none"
    if matching:
        raise UserError(f"the journal has several runs ({names}): name one of them by its identity")
    raise UserError(f"the journal has no run{'' if run_name is None else f' {run_name!r}'}; it has {names}")
