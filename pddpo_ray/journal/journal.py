"""The journal of one run: finished phases are read back, an unfinished one is done again.

    with Journal.open("runs/demo/journal.sqlite", "demo", create=recipe) as journal:
        for k in journal.rounds(16):
            count = journal.once("sample", sample_and_add)      # runs once per (run, round, phase), kill -9 or not

What a phase writes is kept in memory and committed together with its end, in one short transaction: there is no state
in between, and the annotation page can write to the same database while a fit of minutes goes on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table, func, insert, select, union, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from pddpo_ray.contracts import Delivery
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import rows, schema, serving_schema
from pddpo_ray.journal.database import open_database, reading
from pddpo_ray.journal.entries import DeliveryEntry, DualEntry, JournalEvent, PairEntry, PhaseEntry, VersionEntry
from pddpo_ray.journal.lock import DriverLock
from pddpo_ray.records import CostEstimate, LabelledPair, Pair, PolicyVersion, Prompt, Response, SafetyLabels, Verdict

Json = Any
Listener = Callable[[JournalEvent], None]
Closing = Callable[[int], None]


class Journal:
    """Reads and, for the one driver, writes the journal of a run. `open` makes one."""

    def __init__(self, engine: Engine, run_id: str, lock: DriverLock | None, listener: Listener | None = None) -> None:
        self.engine = engine
        self.run_id = run_id
        self.round = 0
        """The round being worked on; 0 is everything before the first."""
        self.is_new = False
        """Whether opening it began the run."""
        self._lock = lock
        self._listener = listener or (lambda event: None)
        self._pending: list[tuple[Table, list[rows.Row], bool]] | None = None
        self._visited: set[tuple[int, str]] = set()
        self.closing: list[Closing] = []
        """Called with the round's number after its last line and before it counts as finished (evaluation, log)."""

    @classmethod
    def open(
        cls,
        url_or_path: str | Path,
        run_id: str,
        create: Mapping[str, Json] | None = None,
        *,
        substance: Mapping[str, Json] | None = None,
        listener: Listener | None = None,
    ) -> Journal:
        """Opens a run to drive it (`create` is its resolved recipe) or, without a recipe, only to read it.

        `substance` is the part of the recipe that decides the numbers (all of it by default): a run may be resumed
        with other settings of what it shows and where it runs, but not with another substance.

        Raises UserError if the run has another recipe, if another process drives it, or if there is nothing to read.
        """
        if create is None and "://" not in str(url_or_path) and not Path(url_or_path).exists():
            raise UserError(f"there is no journal at {url_or_path}: give the folder of a run that was started")
        engine = open_database(url_or_path)
        try:
            if create is None:
                _require_run(engine, run_id)
                return cls(engine, run_id, None, listener)
            decisive = create if substance is None else substance
            is_new = _create_run(engine, run_id, json.loads(json.dumps(create)), json.loads(json.dumps(decisive)))
            journal = cls(engine, run_id, DriverLock(engine, run_id), listener)
            journal.is_new = is_new
            return journal
        except BaseException:
            engine.dispose()
            raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self.engine.dispose()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- rounds and phases --------------------------------------------------------------------------------------

    def rounds(self, total: int) -> Iterator[int]:
        """Numbers of the rounds 1 ... total that are not finished. A round is finished when its loop body ends."""
        for number in range(self.next_round, total + 1):
            started = time.monotonic()
            self.round = number
            self._write([(schema.round_, [self._row(round=number, started_ms=_now_ms())], True)])
            self._tell("round-started")
            yield number
            for close in self.closing:
                close(number)
            with self.engine.begin() as connection:
                self._fence(connection)
                connection.execute(
                    update(schema.round_)
                    .where(schema.round_.c.run == self.run_id, schema.round_.c.round == number)
                    .values(finished_ms=_now_ms())
                )
            self._tell("round-finished", seconds=time.monotonic() - started)
        self.round = max(self.round, total)

    @property
    def next_round(self) -> int:
        """The first round that is not finished."""
        table = schema.round_
        last = select(func.max(table.c.round)).where(table.c.run == self.run_id, table.c.finished_ms.is_not(None))
        with reading(self.engine) as connection:
            return (connection.execute(last).scalar() or 0) + 1

    def once(self, phase: str, compute: Callable[[], Json]) -> Json:
        """The JSON payload of a phase of this round: read back if it is finished, else computed and stored.

        Rows added by `compute` are committed with the phase. A phase may be entered once per round and process: a
        second entry would silently read back the first one's answer, so it is refused.
        """
        key = (self.round, phase)
        if key in self._visited:
            raise RuntimeError(f"phase {phase!r} was entered twice in round {self.round}: give the second a name")
        if self._pending is not None:
            raise RuntimeError(f"phase {phase!r} was entered inside another phase")
        stored = self._finished_phase(phase)
        if stored is not None:
            self._visited.add(key)
            self._tell("phase-reused", phase, stored.seconds)
            return stored.payload
        self._tell("phase-started", phase)
        started, began = _now_ms(), time.monotonic()
        self._pending = []
        try:
            # Through JSON, so that the first run sees the same types as a resumed one.
            payload = json.loads(json.dumps(compute()))
            entry = self._row(round=key[0], phase=phase, started_ms=started, finished_ms=_now_ms(), payload=payload)
            added, self._pending = self._pending, None
            self._write([*added, (schema.phase, [entry], False)])
        finally:
            self._pending = None
        self._visited.add(key)
        self._tell("phase-finished", phase, time.monotonic() - began)
        return payload

    def is_finished(self, phase: str) -> bool:
        """Whether `once` would read this phase of the round back."""
        return self._finished_phase(phase) is not None

    def _finished_phase(self, phase: str) -> PhaseEntry | None:
        found = self.phases(self.round, phase)
        return found[0] if found else None

    # --- writers ------------------------------------------------------------------------------------------------

    def add_version(
        self,
        version: PolicyVersion,
        stage: str,
        metrics: Mapping[str, float] | None = None,
        workers: Sequence[int] = (),
        *,
        base: int | None = None,
        multiplier: float | None = None,
    ) -> None:
        """A version that is in the artifact store; `stage` is reference, reward or cost."""
        finite = {name: float(value) for name, value in (metrics or {}).items() if math.isfinite(value)}
        row = rows.version_row(self.run_id, self.round, version)
        row |= {"stage": stage, "base": base, "multiplier": multiplier, "metrics": finite, "workers": list(workers)}
        self._add(schema.version, [row])

    def add_prompts(self, prompts: Sequence[Prompt]) -> None:
        self._add(schema.prompt, [rows.prompt_row(self.run_id, prompt) for prompt in prompts], keep=True)

    def add_samples(self, purpose: str, responses: Sequence[Response]) -> None:
        """Answers of this round for one purpose, in order; all at once per purpose."""
        self.add_prompts(list({response.prompt.id: response.prompt for response in responses}.values()))
        self._add(schema.sample, rows.sample_rows(self.run_id, self.round, purpose, responses))

    def add_safety(self, labelled: Sequence[SafetyLabels], labeller: str = "unnamed") -> None:
        """Safety labels of answers that the journal already holds; they count for this round alone."""
        self._add(schema.safety_label, rows.safety_rows(self.run_id, self.round, labelled, labeller))

    def add_pair_questions(self, pairs: Sequence[Pair]) -> None:
        """Pairs that are about to be asked, both answers being samples of the journal; all of a round at once."""
        self._add(schema.pair, rows.pair_rows(self.run_id, self.round, pairs))

    def add_pair_labels(self, labelled: Sequence[LabelledPair], labeller: str, source: int = 0) -> None:
        """Answers to pairs that were asked before; `source` tells several labels of one pair apart."""
        self._add(schema.pair_label, rows.pair_label_rows(self.run_id, labelled, labeller, source))

    def add_pairs(self, labelled: Sequence[LabelledPair], labeller: str) -> None:
        """Pairs together with their labels."""
        self.add_pair_questions([item.pair for item in labelled])
        self.add_pair_labels(labelled, labeller)

    def add_dual_step(
        self, constraint: str, estimate: CostEstimate, multiplier_before: float, multiplier_after: float, eta: float
    ) -> None:
        row = self._row(
            round=self.round,
            constraint=constraint,
            value=estimate.value,
            standard_error=estimate.standard_error,
            responses=estimate.responses,
            labels_each=estimate.labels_each,
            mode=estimate.mode,
            multiplier_before=multiplier_before,
            multiplier_after=multiplier_after,
            eta=eta,
            bias_allowance=estimate.bias_allowance,
        )
        self._add(schema.dual_step, [row])

    def add_delivery(self, delivery: Delivery, verified: bool, canary_difference: float | None) -> None:
        """A hand-over that happened; may be added outside a phase, since engines forget what the journal does not."""
        row = self._row(
            round=self.round,
            engine=delivery.engine,
            version=delivery.version,
            sha256=delivery.sha256,
            tensors=delivery.tensors,
            seconds=delivery.seconds,
            tokenizer=delivery.tokenizer,
            verified=verified,
            canary_difference=canary_difference,
            at_ms=_now_ms(),
        )
        self._add(schema.delivery, [row])

    def add_metrics(self, values: Mapping[str, float]) -> None:
        """Numbers of this round by name (`area/what`); a name written again in the same round gets the new value."""
        stored = [
            self._row(round=self.round, name=name, value=None if math.isnan(value) else float(value))
            for name, value in values.items()
        ]
        self._add(schema.metric, stored, keep=True)

    def add_release(self, action: str, round_: int, by: str, reason: str) -> None:
        """What the release rule decided about a round; `action` is release or refuse."""
        row = self._row(action=action, round=round_, by=by, reason=reason, at_ms=_now_ms())
        self._add(serving_schema.release, [row])

    def add_at_once(self, write: Callable[[], None]) -> None:
        """Commits what `write` adds now, whatever becomes of the phase around it."""
        pending, self._pending = self._pending, None
        try:
            write()
        finally:
            self._pending = pending

    def _row(self, **values: Any) -> rows.Row:
        return {"run": self.run_id, **values}

    def _add(self, table: Table, new: list[rows.Row], *, keep: bool = False) -> None:
        if self._pending is not None:
            self._pending.append((table, new, keep))
        else:
            self._write([(table, new, keep)])

    def _write(self, added: Sequence[tuple[Table, list[rows.Row], bool]]) -> None:
        try:
            with self.engine.begin() as connection:
                self._fence(connection)
                for table, new, keep in added:
                    if new:
                        connection.execute(_upsert(connection, table) if keep else insert(table), new)
        except IntegrityError as error:
            raise RunError(
                f"the journal of run {self.run_id} refuses what round {self.round} wrote ({error.orig}): a row that is"
                " there already, or one that names an answer, pair or prompt that was not written before"
            ) from error
        except DBAPIError as error:
            raise RunError(
                f"the journal of run {self.run_id} cannot be written in round {self.round} ({error.orig}): look at its"
                " disk or server, then resume; nothing of the unfinished phase was kept"
            ) from error

    def _fence(self, connection: Connection) -> None:
        if self._lock is None:
            raise RunError(f"the journal of run {self.run_id} was opened for reading")
        self._lock.check(connection)

    def _tell(self, what: str, phase: str = "", seconds: float = 0.0) -> None:
        self._listener(JournalEvent(what, self.round, phase, seconds))

    # --- readers ------------------------------------------------------------------------------------------------

    def _read(self, query: Select[Any]) -> Sequence[Any]:
        with reading(self.engine) as connection:
            return connection.execute(query).all()

    def _of_run(self, table: Table, round_: int | None = None) -> Select[Any]:
        query = select(table).where(table.c.run == self.run_id)
        return query if round_ is None else query.where(table.c.round == round_)

    @property
    def recipe(self) -> Json:
        """The resolved recipe that the run was created with."""
        return self._read(select(schema.run.c.recipe).where(schema.run.c.id == self.run_id))[0].recipe

    def versions(self) -> list[VersionEntry]:
        """All versions, by number."""
        return [
            VersionEntry(
                version=rows.version_record(row),
                round=row.round,
                stage=row.stage,
                base=row.base,
                multiplier=row.multiplier,
                metrics=row.metrics,
                workers=tuple(row.workers),
            )
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
            select(table, prompt.c.token_ids.label("prompt_tokens"), prompt.c.text.label("prompt_text"))
            .join(prompt, (prompt.c.run == table.c.run) & (prompt.c.id == table.c.prompt))
            .where(table.c.run == self.run_id)
        )

    def _responses(self, query: Select[Any]) -> list[Response]:
        seen: dict[str, Prompt] = {}
        found = []
        for row in self._read(query):
            if row.prompt not in seen:
                seen[row.prompt] = Prompt(row.prompt, tuple(row.prompt_tokens), row.prompt_text)
            found.append(rows.response_record(row, seen[row.prompt]))
        return found

    def safety(self, round_: int | None = None, constraint: str | None = None) -> list[SafetyLabels]:
        """Safety labels by answer, in the order in which the answers were asked."""
        table = schema.safety_label
        query = self._of_run(table, round_).order_by(
            table.c.round, table.c.constraint, table.c.position, table.c.source
        )
        if constraint is not None:
            query = query.where(table.c.constraint == constraint)
        grouped: dict[tuple[str, str], list[Verdict]] = {}
        for row in self._read(query):
            grouped.setdefault((row.sample, row.constraint), []).append(Verdict(row.label))
        answers = {response.id: response for response in self.samples(round_)}
        return [SafetyLabels(answers[sample], tuple(labels), name) for (sample, name), labels in grouped.items()]

    def pair_questions(self, round_: int | None = None) -> list[Pair]:
        """Pairs in the order in which they were chosen, labelled or not."""
        query = self._of_run(schema.pair, round_).order_by(schema.pair.c.round, schema.pair.c.position)
        # Only the answers that the pairs name: a run has many times more.
        sides = [
            select(side).where(
                schema.pair.c.run == self.run_id, *([] if round_ is None else [schema.pair.c.round == round_])
            )
            for side in (schema.pair.c.first, schema.pair.c.second)
        ]
        named = self._joined_samples().where(schema.sample.c.id.in_(union(*sides)))
        answers = {response.id: response for response in self._responses(named)}
        return [Pair(row.id, answers[row.first], answers[row.second]) for row in self._read(query)]

    def pairs(self, round_: int | None = None) -> list[PairEntry]:
        """Labelled pairs with their round and labeller, in order."""
        questions = {pair.id: pair for pair in self.pair_questions(round_)}
        table, pair = schema.pair_label, schema.pair
        query = (
            select(table, pair.c.round)
            .join(pair, (pair.c.run == table.c.run) & (pair.c.id == table.c.pair))
            .where(table.c.run == self.run_id)
            .order_by(pair.c.round, pair.c.position, table.c.source)
        )
        if round_ is not None:
            query = query.where(pair.c.round == round_)
        return [
            PairEntry(row.round, row.labeller, row.source, rows.labelled_pair_record(row, questions[row.pair]))
            for row in self._read(query)
        ]

    def dual_steps(self) -> list[DualEntry]:
        """Every step of every multiplier, by round."""
        table = schema.dual_step
        return [
            DualEntry(
                round=row.round,
                constraint=row.constraint,
                estimate=CostEstimate(
                    row.value,
                    row.standard_error,
                    row.responses,
                    row.labels_each,
                    row.mode,
                    row.constraint,
                    row.bias_allowance,
                ),
                multiplier_before=row.multiplier_before,
                multiplier_after=row.multiplier_after,
                eta=row.eta,
            )
            for row in self._read(self._of_run(table).order_by(table.c.round, table.c.constraint))
        ]

    def deliveries(self) -> list[DeliveryEntry]:
        """Every hand-over, in the order in which they happened."""
        return [
            DeliveryEntry(
                row.round,
                Delivery(row.engine, row.version, row.sha256, row.tensors, row.seconds, row.tokenizer),
                row.verified,
                row.canary_difference,
            )
            for row in self._read(self._of_run(schema.delivery).order_by(schema.delivery.c.id))
        ]

    def metrics(self) -> dict[int, dict[str, float]]:
        """{round: {name: value}}; a number that does not exist reads as nan."""
        found: dict[int, dict[str, float]] = {}
        table = schema.metric
        for row in self._read(self._of_run(table).order_by(table.c.round, table.c.name)):
            found.setdefault(row.round, {})[row.name] = math.nan if row.value is None else row.value
        return found

    def phases(self, round_: int | None = None, like: str = "%") -> list[PhaseEntry]:
        """Finished phases in the order in which they ended; `like` is a pattern of their names (`prompts-%`)."""
        table = schema.phase
        query = self._of_run(table, round_).order_by(table.c.round, table.c.finished_ms, table.c.started_ms)
        if like != "%":
            query = query.where(table.c.phase.like(like))
        return [
            PhaseEntry(row.round, row.phase, row.started_ms, row.finished_ms, row.payload) for row in self._read(query)
        ]


def _create_run(engine: Engine, run_id: str, recipe: Json, substance: Json) -> bool:
    """Whether the run is new. Raises UserError if it is not and has another substance."""
    with engine.begin() as connection:
        found = connection.execute(select(schema.run).where(schema.run.c.id == run_id)).first()
        if found is None:
            entry = {"id": run_id, "recipe": recipe, "substance": substance, "created_ms": _now_ms()}
            connection.execute(insert(schema.run).values(**entry))
        elif found.substance != substance:
            raise UserError(
                f"run {run_id} belongs to another recipe ({_first_difference(found.substance, substance)}): choose"
                " another run folder, or resume with the recipe it was started with"
            )
        return found is None


def _first_difference(old: Json, new: Json, path: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        key = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
        return _first_difference(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    return f"{path} is {old!r} there and {new!r} here"


def _require_run(engine: Engine, run_id: str) -> None:
    with reading(engine) as connection:
        known = [row.id for row in connection.execute(select(schema.run.c.id).order_by(schema.run.c.id))]
    if run_id not in known:
        raise UserError(f"the journal has no run {run_id!r}; it has {', '.join(known) or 'none'}")


def _upsert(connection: Connection, table: Table) -> Any:
    """Insert that replaces the values of a row with the same key."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    keys = [column.name for column in table.primary_key]
    rest = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=rest)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
