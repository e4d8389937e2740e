"""Everything that people said in a run, as rows that lose nothing, and back.

    rows = list(label_rows(store))                    # one per answer, also surplus, refused and taken back
    take_label_rows(other, rules, rows)               # the same answers to the same questions elsewhere

A row holds who (a pseudonym), what, when, under which guidelines, of which policies, and whether it counts. Exporting
an imported row gives the same row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.queue.answer_forms import OF_LIMITS_ALONE, STORED
from pddpo_ray.annotation.queue.assignment import settle
from pddpo_ray.annotation.queue.exchange import Taken, contradictory, examples
from pddpo_ray.annotation.queue.queue_rules import Outcome, Rules
from pddpo_ray.data.convert import rendering
from pddpo_ray.data.files.sinks import Sink, schema_of
from pddpo_ray.data.formats.example import Dimension
from pddpo_ray.data.formats.standard import WRITABLE, write_rows
from pddpo_ray.errors import UserError
from pddpo_ray.journal.annotation_schema import (
    annotator,
    answer,
    guideline,
    lease,
    question_round,
    seat,
    task,
    withdrawal,
)
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.tokens import hashed, new_token
from pddpo_ray.journal.transactions import Store
from pddpo_ray.limits.answer_files import json_rows

PSEUDONYM = 16
"""Letters of an account's random id that stand for the person in rows."""
QUESTION = ("round", "purpose", "item", "kind", "prompt", "first", "second")
SAID = ("reason", "note", "ms_spent", "revealed", "outcome", "late", "guideline", "swap", "at_ms")
VERSIONS = ("policy_version", "second_policy_version")
WITHDRAWN = ("kind", "reason", "at_ms")
GIVEN = tuple(name for names in STORED.values() for name in names)


def label_rows(store: Store, *, round_: int | None = None) -> Iterator[dict[str, Any]]:
    """One row per answer in order of arrival, without control questions."""
    query = (
        select(
            answer, *(task.c[name] for name in ("item", "prompt", "first", "second", "provenance")),
            task.c.kind.label("question_kind"), question_round.c.round, question_round.c.purpose, lease.c.leased_ms,
            seat.c.number, guideline.c.markdown, *(withdrawal.c[name].label(f"withdrawn_{name}") for name in WITHDRAWN),
        )
        .join(task, task.c.id == answer.c.task)
        .join(question_round, question_round.c.id == task.c.question_round)
        .join(lease, lease.c.id == answer.c.lease)
        .outerjoin(seat, seat.c.answer == answer.c.seq)
        .outerjoin(withdrawal, withdrawal.c.answer == answer.c.seq)
        .outerjoin(guideline, (guideline.c.run == question_round.c.run) & (guideline.c.version == answer.c.guideline))
        .where(question_round.c.run == store.run, task.c.gold.is_(None))
        .order_by(answer.c.seq)
    )  # fmt: skip
    if round_ is not None:
        query = query.where(question_round.c.round == round_)
    with reading(store.engine) as connection:
        for row in connection.execute(query):
            yield _row(row)


def _row(row: Any) -> dict[str, Any]:
    columns = {"kind": row.question_kind, **{name: getattr(row, name) for name in QUESTION if name != "kind"}}
    return {
        "id": row.key,
        **{name: columns[name] for name in QUESTION},
        **{name: row.provenance.get(name) for name in VERSIONS},
        "annotator": row.annotator[:PSEUDONYM],
        "reply": row.kind,
        **{name: row.given.get(name) for name in GIVEN},
        **{name: getattr(row, name) for name in SAID},
        "guideline_text": row.markdown,
        "leased_ms": row.leased_ms,
        "seat": row.number,
        **{f"withdrawn_{name}": getattr(row, f"withdrawn_{name}") for name in WITHDRAWN},
    }


def take_label_rows(store: Store, rules: Rules, rows: Iterable[Mapping[str, Any]]) -> Taken:
    """Takes in the `label_rows` of a run with the same questions. A row stored already counts as repeated; a row
    without its question, or whose seat another label has, goes into `not_taken`."""
    report = Taken()

    def take(connection: Connection) -> None:
        questions = _questions(connection, store.run)
        for number, row in enumerate(rows, 1):
            question = questions.get(tuple(row[name] for name in QUESTION))
            if question is None:
                report.not_taken.append(f"row {number}: no question of this run is the one that it answers")
            elif connection.execute(select(answer.c.seq).where(answer.c.key == row["id"])).first() is not None:
                report.outcomes["repeated"] += 1
            elif problem := _refusal(connection, question, row):
                report.not_taken.append(f"row {number}: {problem}")
            else:
                _keep(connection, store, question, row)
                settle(connection, question.id, rules)
                report.outcomes["withdrawn" if row["withdrawn_kind"] else row["outcome"]] += 1
        record_event(connection, store.clock(), "import", "labels.import", store.run, **dict(Counter(report.outcomes)))

    store.write(take)
    return report


def _questions(connection: Connection, run: str) -> dict[tuple[Any, ...], Any]:
    query = (
        select(task, question_round.c.round, question_round.c.purpose, question_round.c.state.label("batch"))
        .join(question_round, question_round.c.id == task.c.question_round)
        .where(question_round.c.run == run, task.c.gold.is_(None))
    )
    return {tuple(getattr(row, name) for name in QUESTION): row for row in connection.execute(query)}


def _refusal(connection: Connection, question: Any, row: Mapping[str, Any]) -> str:
    """Why a row cannot be kept as it is; empty where it can."""
    if row["seat"] is None:
        return ""
    if question.batch != "open":
        return f"the batch is {question.batch}: its labels are fixed"
    clash = (seat.c.task == question.id) & ((seat.c.number == row["seat"]) | (seat.c.annotator == row["annotator"]))
    free = question.needed - question.leased - 1
    full = (
        connection.execute(select(func.count()).select_from(seat).where(seat.c.task == question.id)).scalar_one() > free
    )
    seated = row["seat"] >= question.needed or connection.execute(select(seat.c.task).where(clash)).first() is not None
    return "another label has its place" if seated or full else ""


def _keep(connection: Connection, store: Store, question: Any, row: Mapping[str, Any]) -> None:
    """Stores the answer with its author, guidelines, lease, seat and withdrawal."""
    _enlist(connection, row["annotator"], store.clock())
    _same_guidelines(connection, store.run, row)
    query = select(lease.c.id).where(lease.c.task == question.id, lease.c.annotator == row["annotator"])
    lease_id = connection.execute(query).scalar()
    times = {"leased_ms": row["leased_ms"], "expires_ms": row["at_ms"], "state": "answered"}
    if lease_id is None:
        lease_id = f"{row['annotator']}{hashed(question.id)[:24]}"
        ids = {"id": lease_id, "task": question.id, "annotator": row["annotator"]}
        connection.execute(insert(lease).values(**times, **ids, swap=row["swap"], guideline=row["guideline"]))
    else:
        connection.execute(update(lease).where(lease.c.id == lease_id).values(**times))
    details = {name: row[name] for name in SAID}
    values = {name: row[name] for name in GIVEN if row.get(name) is not None}
    keys = {
        "key": row["id"],
        "lease": lease_id,
        "task": question.id,
        "annotator": row["annotator"],
        "kind": row["reply"],
    }
    statement = insert(answer).values(**details, **keys, given=values).returning(answer.c.seq)
    seq = int(connection.execute(statement).scalar_one())
    if row["seat"] is not None:
        place = {"task": question.id, "number": row["seat"], "needed": question.needed}
        connection.execute(insert(seat).values(**place, annotator=row["annotator"], answer=seq))
        connection.execute(update(task).where(task.c.id == question.id).values(seats=task.c.seats + 1))
    if row["withdrawn_kind"]:
        columns = {name: row[f"withdrawn_{name}"] for name in WITHDRAWN}
        connection.execute(insert(withdrawal).values(answer=seq, by="import", **columns))
    elif row["outcome"] == Outcome.REFUSED:
        connection.execute(update(task).where(task.c.id == question.id).values(refusals=task.c.refusals + 1))


def _enlist(connection: Connection, pseudonym: str, now_ms: int) -> None:
    """Adds an account under the pseudonym; nobody can sign in with it."""
    if connection.execute(select(annotator.c.id).where(annotator.c.id == pseudonym)).first() is not None:
        return
    token = new_token()
    row = {"id": pseudonym, "handle": f"imported {pseudonym}", "role": Role.ANNOTATOR.value, "active": False}
    row |= {"sees_harmful": True, "daily_cap": 0, "created_ms": now_ms}
    connection.execute(insert(annotator).values(**row, token_sha256=hashed(token), token_prefix=token[:8]))


def _same_guidelines(connection: Connection, run: str, row: Mapping[str, Any]) -> None:
    """Stores the guidelines that the author could read, if their number is free."""
    if row["guideline_text"] is None:
        return
    same_version = (guideline.c.run == run) & (guideline.c.version == row["guideline"])
    if connection.execute(select(guideline.c.version).where(same_version)).first() is None:
        values = {"run": run, "version": row["guideline"], "markdown": row["guideline_text"], "by": "import"}
        connection.execute(insert(guideline).values(**values, at_ms=row["at_ms"]))


def read_label_rows(file: Path) -> list[dict[str, Any]]:
    """Reads rows from JSON lines or Parquet. Raises UserError for a file that holds anything else."""
    if not file.is_file():
        raise UserError(f"{file}: there is no such file")
    if file.suffix == ".parquet":
        from pyarrow import ArrowException, parquet

        try:
            rows = parquet.read_table(file).to_pylist()
        except ArrowException as error:
            raise UserError(f"{file} is no Parquet file: {error}") from error
    else:
        rows = [row for _, _, row in json_rows(file)]
    of_safety = set(GIVEN) - set(OF_LIMITS_ALONE)  # files of earlier versions know no others
    names = {"id", "annotator", "reply", "seat", *QUESTION, *of_safety, *SAID, "guideline_text", "leased_ms"}
    names |= {f"withdrawn_{name}" for name in WITHDRAWN}
    for number, row in enumerate(rows, 1):
        if missing := sorted(names - set(row if isinstance(row, dict) else ())):
            raise UserError(f"{file} row {number} is none of `export --to labels`: it lacks {', '.join(missing)}")
    return rows


# --- what people said as a file: all there is, one row per answer, or a format of `pddpo data` -----------------------


LABELS = "labels"
"""Format that loses nothing: one row per answer."""


@dataclass(frozen=True)
class Written:
    """Rows of the file. For training formats also how many examples had no label for the format, and how many answers
    were left out because they contradict themselves."""

    rows: int
    without_a_label_for_it: int = 0
    contradictory: int = 0


def write_label_file(
    store: Store, out: Path, to: str = LABELS, *, dimension: Dimension = "helpful", round_: int | None = None
) -> Written:
    """Writes a .jsonl, .jsonl.gz, .parquet or .arrow; no file where there is no row. Raises UserError for another
    format or name."""
    if to == LABELS:
        with Sink(out, LABELS) as sink:
            for row in label_rows(store, round_=round_):
                sink.write(row)
        return Written(sink.rows)
    if to not in WRITABLE:
        raise UserError(f"--to {to} is unknown: use {LABELS}, {', '.join(WRITABLE)}")
    prompt = rendering("plain", None, None).prompt
    unlabelled = 0
    with Sink(out, to, dimension) as sink:
        for example in examples(store, round_=round_):
            rows = write_rows(example, to, dimension, prompt)
            unlabelled += not rows
            for row in rows:
                sink.write(row)
    return Written(sink.rows, unlabelled, contradictory(store, round_=round_))


def write_empty(out: Path, to: str) -> None:
    """A file without rows: for Parquet with the format's columns."""
    if out.suffix != ".parquet":
        out.touch()
        return
    from pyarrow import parquet

    parquet.write_table(schema_of(to, "helpful").empty_table(), out)
