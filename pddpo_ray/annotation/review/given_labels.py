"""The labels of a batch one by one, for a lead who checks them and takes one out of the count (`Answers.void`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from pddpo_ray.annotation.queue.batch_rows import ADJUDICATED, CountedAnswer
from pddpo_ray.journal.annotation_schema import annotator, answer, question_round, seat, snapshot, task, withdrawal
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Given

BACK = {"undo": "taken back", "void": "taken out"}
"""What a withdrawal makes of a label: by its author, or by a lead."""


@dataclass(frozen=True)
class GivenLabel:
    """One label in stored form, with the texts that it is about and the version of the guidelines that it saw.

    `state` is counts, surplus, taken back or taken out; for the last, `by` (a handle) and `reason` hold who and why.
    `fixed` says why it can be taken out no more, and is empty where it can.
    """

    key: str
    handle: str
    kind: str
    prompt: str
    first: str
    second: str | None
    given: Given
    note: str
    guideline: int
    at_ms: int
    state: str
    by: str | None
    reason: str | None
    fixed: str


def authors_of(store: Store, round_id: str) -> list[dict[str, str]]:
    """Id and handle of each person who labelled in a batch, also where the labels no longer count; by handle."""
    query = (
        select(annotator.c.id, annotator.c.handle)
        .join(answer, answer.c.annotator == annotator.c.id)
        .join(task, task.c.id == answer.c.task)
        .join(question_round, question_round.c.id == task.c.question_round)
        .where(question_round.c.run == store.run, question_round.c.id == round_id)
        .where(answer.c.kind == "label", task.c.gold.is_(None))
        .distinct()
        .order_by(annotator.c.handle)
    )
    with reading(store.engine) as connection:
        return [{"id": row.id, "handle": row.handle} for row in connection.execute(query)]


def labels_of(store: Store, round_id: str, *, person: str | None, offset: int, limit: int) -> list[GivenLabel]:
    """Labels of a batch, the newest first; of one person where their id is given."""
    author = annotator.alias("author")
    query = (
        select(
            answer, task.c.kind.label("question"), task.c.prompt, task.c.first, task.c.second, annotator.c.handle,
            seat.c.number, withdrawal.c.kind.label("back"), withdrawal.c.by, withdrawal.c.reason.label("why"),
            author.c.handle.label("author"),
        )
        .join(task, task.c.id == answer.c.task)
        .join(question_round, question_round.c.id == task.c.question_round)
        .join(annotator, annotator.c.id == answer.c.annotator)
        .outerjoin(seat, seat.c.answer == answer.c.seq)
        .outerjoin(withdrawal, withdrawal.c.answer == answer.c.seq)
        .outerjoin(author, author.c.id == withdrawal.c.by)
        .where(question_round.c.run == store.run, question_round.c.id == round_id)
        .where(answer.c.kind == "label", task.c.gold.is_(None))
    )  # fmt: skip
    if person is not None:
        query = query.where(answer.c.annotator == person)
    with reading(store.engine) as connection:
        batch = connection.execute(select(question_round).where(question_round.c.id == round_id)).one()
        read_keys = keys_read(connection, round_id)
        rows = connection.execute(query.order_by(answer.c.seq.desc()).offset(offset).limit(limit)).all()
    return [_label(row, why_fixed(batch, row.key in read_keys)) for row in rows]


def _label(row: Any, fixed: str) -> GivenLabel:
    state = BACK[row.back] if row.back else "surplus" if row.number is None else "counts"
    voided = row.back == "void"
    return GivenLabel(
        row.key, row.handle, row.question, row.prompt, row.first, row.second, row.given, row.note, row.guideline,
        row.at_ms, state, (row.author or row.by) if voided else None, row.why if voided else None, fixed,
    )  # fmt: skip


def keys_read(connection: Connection, round_id: str) -> set[str]:
    """Keys of the labels that the run has read: those of the snapshot, none while the batch is open."""
    content = connection.execute(select(snapshot.c.content).where(snapshot.c.question_round == round_id)).scalar()
    entries = [CountedAnswer(*entry) for entry in content or ()]
    return {entry.key for entry in entries if entry.seat != ADJUDICATED}


def why_fixed(batch: Any, read: bool) -> str:
    """Why a label of this batch can be taken out of the count no more; empty where it can. `read`: by the run."""
    batch_name = f"round {batch.round}, {batch.purpose}"
    if read:
        return f"{batch_name} is closed and the run has used this label: what it learned from it stays"
    if batch.state == "cancelled":
        return f"{batch_name} was stopped, so none of its labels count: reopen it first"
    return ""
