"""Rows of batches: how one is stored, counted and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Integer, case, cast, func, literal, select

from pddpo_ray.journal.annotation_schema import (
    adjudication,
    answer,
    question_round,
    seat,
    task,
)
from pddpo_ray.journal.rows import columns_of
from pddpo_ray.parts.questions import Question

DROPPED = "dropped"
"""State of a question that is asked no more."""
ADJUDICATED = -1
"""Seat that marks a lead's decision about a question in a stored snapshot."""


@dataclass(frozen=True)
class RoundStatus:
    """How far a batch is. Counts are of questions, except `wanted` and `counted`, which are labels.

    A dropped question wants no more labels than it has; `asked` is what was wanted before anything was dropped.
    """

    id: str
    round: int
    purpose: str
    kind: str
    labels_each: int
    state: str
    opened_ms: int
    deadline_ms: int | None
    questions: int
    satisfied: int
    blocked: int
    dropped: int
    wanted: int
    asked: int
    counted: int
    out: int
    refusals: int

    @property
    def missing(self) -> int:
        return self.wanted - self.counted

    @property
    def name(self) -> str:
        """On the command line: `2/safety`."""
        return f"{self.round}/{self.purpose}"

    @property
    def complete(self) -> bool:
        return self.missing == 0


@dataclass(frozen=True)
class CountedAnswer:
    """One label of a snapshot: `seat` tells the labels of one question apart, in the order of arrival."""

    position: int
    item: str
    seat: int
    annotator: str
    key: str
    given: dict[str, str]


@dataclass(frozen=True)
class Snapshot:
    """What a frozen round decided: the labels that count, and by item what a lead decided where people differ.
    `sha256` names the content."""

    round_id: str
    answers: tuple[CountedAnswer, ...]
    sha256: str
    adjudicated: Mapping[str, dict[str, str]] = field(default_factory=dict)


def round_id(run: str, round_: int, purpose: str) -> str:
    """The id of a new batch: the same in any process that opens it."""
    return hashlib.sha256(f"{run}\0{round_}\0{purpose}".encode()).hexdigest()[:32]


def task_row(round_id_: str, position: int, question: Question, needed: int) -> dict[str, Any]:
    digest = hashlib.sha256(f"{round_id_}\0{question.item}\0{question.digest()}".encode()).hexdigest()[:32]
    low, high = question.bounds or (None, None)
    row = columns_of(question, "bounds") | {"low": low, "high": high}
    row |= {"id": digest, "question_round": round_id_, "position": position, "needed": needed}
    row |= {"turns": [list(turn) for turn in question.turns] or None}
    return row | {"provenance": dict(question.provenance), "seats": 0, "leased": 0, "refusals": 0, "state": "open"}


def status_query() -> Any:
    def total(number: Any) -> Any:
        return cast(func.coalesce(func.sum(number), 0), Integer)

    def count(state: str) -> Any:
        return total(case((task.c.state == state, 1), else_=0))

    return (
        select(
            question_round,
            func.count(task.c.id).label("questions"),
            count("satisfied").label("satisfied"),
            count("blocked").label("blocked"),
            count(DROPPED).label("dropped"),
            total(case((task.c.state == DROPPED, task.c.seats), else_=task.c.needed)).label("wanted"),
            total(task.c.needed).label("asked"),
            total(task.c.seats).label("counted"),
            total(task.c.leased).label("out"),
            total(task.c.refusals).label("refusals"),
        )
        .outerjoin(task, task.c.question_round == question_round.c.id)
        .group_by(*question_round.c)
    )


def counted_query(id_: str) -> Any:
    return (
        select(task.c.position, task.c.item, seat.c.number, seat.c.annotator, answer.c.key, answer.c.given)
        .select_from(seat.join(task, task.c.id == seat.c.task).join(answer, answer.c.seq == seat.c.answer))
        .where(task.c.question_round == id_)
        .order_by(task.c.position, answer.c.seq)
    )


def adjudicated_query(id_: str) -> Any:
    """The newest decision about each question, in the shape of a label without a seat."""
    newest = select(func.max(adjudication.c.seq)).group_by(adjudication.c.task)
    key = literal("adjudicated").label("key")
    return (
        select(
            task.c.position, task.c.item, literal(ADJUDICATED).label("number"), adjudication.c.by, key,
            adjudication.c.given,
        )
        .join(task, task.c.id == adjudication.c.task)
        .where(task.c.question_round == id_, adjudication.c.seq.in_(newest))
        .order_by(task.c.position)
    )  # fmt: skip


def snapshot_of(id_: str, content: Sequence[Sequence[Any]], sha256: str) -> Snapshot:
    entries = [CountedAnswer(*entry) for entry in content]
    labels = tuple(entry for entry in entries if entry.seat != ADJUDICATED)
    return Snapshot(id_, labels, sha256, {entry.item: entry.given for entry in entries if entry.seat == ADJUDICATED})
