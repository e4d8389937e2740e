"""The journal of the run that this process drives: finished phases are read back, an unfinished one is done again.

    with Journal.open("runs/demo/journal.sqlite", "demo", create=recipe) as journal:
        for k in journal.rounds(16):
            count = journal.once("sample", sample_and_add)      # runs once per (run, round, phase), kill -9 or not

What a phase writes is kept in memory and committed together with its end, in one short transaction: there is no state
in between, and the annotation page can write to the same database during a fit of minutes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import rows, schema
from pddpo_ray.journal.database import now_ms, open_database
from pddpo_ray.journal.lock import DriverLock
from pddpo_ray.journal.reading import JournalReader
from pddpo_ray.journal.rows import JournalEvent, PhaseEntry
from pddpo_ray.records import (
    CostEstimate,
    Delivery,
    LabelledPair,
    Measurement,
    Pair,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
)

Json = Any
Listener = Callable[[JournalEvent], None]
Closing = Callable[[int], None]
UNSTORED = ("within_variance", "cost_max", "bounds", "rounds_late", "moved")
"""Fields of an estimate that no column holds."""


class Journal(JournalReader):
    """What the one driver of a run writes. `open` makes one."""

    def __init__(self, engine: Engine, run_id: str, listener: Listener | None = None) -> None:
        """Takes the run over, or raises UserError if another process drives it."""
        super().__init__(engine, run_id)
        self.round = 0
        """The round being worked on; 0 is everything before the first."""
        self.is_new = False
        """Whether opening it began the run."""
        self._lock = DriverLock(engine, run_id)
        self._listener = listener or (lambda event: None)
        self._pending: list[tuple[Table, list[rows.Row], bool]] | None = None
        self._visited_phases: set[tuple[int, str]] = set()
        self.closing: list[Closing] = []
        """Called with the round's number after its last line and before it counts as finished (evaluation, log)."""

    @classmethod
    def open(
        cls,
        url_or_path: str | Path,
        run_id: str,
        create: Mapping[str, Json],
        *,
        fixed: Mapping[str, Json] | None = None,
        listener: Listener | None = None,
        name: str | None = None,
        part_of: str | None = None,
    ) -> Journal:
        """Begins or resumes a run; `create` is its resolved recipe.

        `fixed` is the part of the recipe that a resumed run must share (all of it by default): what decides the
        numbers. What the run shows and where it runs may change. A new run is called `name` (as its identity by
        default) and belongs to the run `part_of` if it is that one's comparison.

        Raises UserError if the run has another recipe or if another process drives it.
        """
        engine = open_database(url_or_path)
        try:
            recipe = json.loads(json.dumps(create))
            decisive = recipe if fixed is None else json.loads(json.dumps(fixed))
            is_new = _create_run(engine, run_id, recipe, decisive, name or run_id, part_of)
            journal = cls(engine, run_id, listener)
            journal.is_new = is_new
            return journal
        except BaseException:
            engine.dispose()
            raise

    def close(self) -> None:
        self._lock.release()
        super().close()

    def note_sitting(self, sitting: Mapping[str, Json], home: Mapping[str, Json], *, recipe: Json, fixed: Json) -> None:
        """Keeps who drives the run, where it lives, and the recipe as it is driven now, with more rounds perhaps."""
        values = {"sittings": [*self.about.sittings, sitting], "home": home, "recipe": recipe, "fixed_settings": fixed}
        with self.engine.begin() as connection:
            self._lock.check(connection)
            connection.execute(update(schema.run).where(schema.run.c.id == self.run_id).values(**values))

    # --- rounds and phases --------------------------------------------------------------------------------------

    def rounds(self, total: int) -> Iterator[int]:
        """Numbers of the rounds 1 ... total that are not finished. A round is finished when its loop body ends."""
        for number in range(self.next_round, total + 1):
            started = time.monotonic()
            self.round = number
            self._write([(schema.round_, [self._row(round=number, started_ms=now_ms())], True)])
            self._tell("round-started")
            yield number
            for close in self.closing:
                close(number)
            with self.engine.begin() as connection:
                self._lock.check(connection)
                connection.execute(
                    update(schema.round_)
                    .where(schema.round_.c.run == self.run_id, schema.round_.c.round == number)
                    .values(finished_ms=now_ms())
                )
            self._tell("round-finished", seconds=time.monotonic() - started)
        self.round = max(self.round, total)

    def once(self, phase: str, compute: Callable[[], Json]) -> Json:
        """The JSON payload of a phase of this round: read back if it is finished, else computed and stored.

        Rows added by `compute` are committed with the phase. A phase may be entered once per round and process: a
        second entry would silently read back the first one's answer, so it is refused.
        """
        key = (self.round, phase)
        if key in self._visited_phases:
            raise RuntimeError(f"phase {phase!r} was entered twice in round {self.round}: give the second a name")
        if self._pending is not None:
            raise RuntimeError(f"phase {phase!r} was entered inside another phase")
        stored = self._finished_phase(phase)
        if stored is not None:
            self._visited_phases.add(key)
            self._tell("phase-reused", phase, stored.seconds)
            return stored.payload
        self._tell("phase-started", phase)
        started, began = now_ms(), time.monotonic()
        self._pending = []
        try:
            # Through JSON, so that the first run sees the same types as a resumed one.
            payload = json.loads(json.dumps(compute()))
            entry = self._row(round=key[0], phase=phase, started_ms=started, finished_ms=now_ms(), payload=payload)
            added, self._pending = self._pending, None
            self._write([*added, (schema.phase, [entry], False)])
        finally:
            self._pending = None
        self._visited_phases.add(key)
        self._tell("phase-finished", phase, time.monotonic() - began)
        return payload

    def is_finished(self, phase: str) -> bool:
        """Whether `once` would read this phase of the round back."""
        return self._finished_phase(phase) is not None

    def _finished_phase(self, phase: str) -> PhaseEntry | None:
        entries = self.phases(self.round, phase)
        return entries[0] if entries else None

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
        row = self._row(round=self.round, stage=stage, base=base, multiplier=multiplier, **rows.columns_of(version))
        self._add(schema.version, [row | {"metrics": finite, "workers": list(workers)}])

    def add_prompts(self, prompts: Sequence[Prompt]) -> None:
        self._add(schema.prompt, [rows.prompt_row(self.run_id, prompt) for prompt in prompts], keep=True)

    def add_samples(self, purpose: str, responses: Sequence[Response]) -> None:
        """Answers of this round for one purpose, in order; all at once per purpose."""
        self.add_prompts(list({response.prompt.id: response.prompt for response in responses}.values()))
        self._add(schema.sample, rows.sample_rows(self.run_id, self.round, purpose, responses))

    def add_safety(self, labelled: Sequence[SafetyLabels], labeller: str = "unnamed") -> None:
        """Safety labels of answers that the journal already holds; they count for this round alone."""
        measured = rows.label_measurements(labelled, labeller)
        self.add_measurements(rows.SAFETY, measured, [item.response for item in labelled])

    def add_measurements(self, phase: str, measured: Sequence[Measurement], answers: Sequence[Response]) -> None:
        """What was measured of these answers, which the journal already holds, for one purpose of this round."""
        new = rows.measurement_rows(self.run_id, self.round, phase, measured, answers, now_ms())
        self._add(schema.measurement, new)

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
        row = self._row(round=self.round, multiplier_before=multiplier_before, multiplier_after=multiplier_after)
        row |= rows.columns_of(estimate, *UNSTORED) | {
            "constraint": constraint,
            "eta": eta,
        }
        self._add(schema.dual_step, [row])

    def add_delivery(self, delivery: Delivery, verified: bool, canary_difference: float | None) -> None:
        """A hand-over that happened; may be added outside a phase, since engines forget what the journal does not."""
        row = self._row(round=self.round, verified=verified, canary_difference=canary_difference, at_ms=now_ms())
        self._add(schema.delivery, [row | rows.columns_of(delivery)])

    def add_metrics(self, values: Mapping[str, float]) -> None:
        """Numbers of this round by name (`area/what`); a name written again in the same round gets the new value."""
        stored = [
            self._row(round=self.round, name=name, value=None if math.isnan(value) else float(value))
            for name, value in values.items()
        ]
        self._add(schema.metric, stored, keep=True)

    def add_release(self, action: str, round_: int, by: str, reason: str) -> None:
        """What the release rule decided about a round; `action` is release or refuse."""
        row = self._row(action=action, round=round_, by=by, reason=reason, at_ms=now_ms())
        self._add(schema.release, [row])

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
                self._lock.check(connection)
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

    def _tell(self, kind: str, phase: str = "", seconds: float = 0.0) -> None:
        self._listener(JournalEvent(kind, self.round, phase, seconds))


def _create_run(engine: Engine, run_id: str, recipe: Json, fixed: Json, name: str, part_of: str | None) -> bool:
    """Whether the run is new. Raises UserError if it is not and has other fixed settings."""
    with engine.begin() as connection:
        stored = connection.execute(select(schema.run).where(schema.run.c.id == run_id)).first()
        if stored is None:
            entry = {"id": run_id, "name": name, "recipe": recipe, "fixed_settings": fixed, "created_ms": now_ms()}
            connection.execute(insert(schema.run).values(**entry, part_of=part_of))
        elif stored.fixed_settings != fixed:
            raise UserError(
                f"run {run_id} belongs to another recipe ({first_difference(stored.fixed_settings, fixed)}): choose"
                " another run folder, or resume with the recipe it was started with"
            )
        return stored is None


def first_difference(old: Json, new: Json, path: str = "") -> str:
    """The first setting in which two trees differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        key = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
        return first_difference(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    return f"{path} is {old!r} there and {new!r} here"


def _upsert(connection: Connection, table: Table) -> Any:
    """Insert that replaces the values of a row with the same key."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    keys = [column.name for column in table.primary_key]
    updates = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=updates)
