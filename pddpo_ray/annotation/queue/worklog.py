"""How long people worked, by the server's clock alone.

    worked = WorkLog(store, idle_s=600)
    worked.days()                                     # by person and day
    as_csv(worked.days(), rate=18.0)                  # with pay, at the person's own rate where they have one

An answer counts from the moment at which the person got the question, or gave the answer before it, whichever is later;
`idle_s` at most. What a browser says about its own time is not used.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select

from pddpo_ray.journal.annotation_schema import annotator, answer, lease, question_round, task
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store

RULE = "from being given a question, or from the answer before it, to the answer; at most the idle limit"


@dataclass(frozen=True)
class Day:
    """What one person did on one day (UTC): labels, everything else that they sent, and seconds of work. `rate` is
    their own pay per hour, None where they have none."""

    handle: str
    day: str
    answers: int
    refusals: int
    seconds: float
    rate: float | None = None


@dataclass(frozen=True)
class _Stretch:
    handle: str
    rate: float | None
    round: str
    at_ms: int
    label: bool
    ms: int


def worked_ms(spans: Sequence[tuple[int, int]], idle_ms: int) -> list[int]:
    """Work of each answer of one person, in the order of arrival: (got the question, answered), in ms. -> [n]

    A question that was handed out again after the answer (the answer was taken back) has lost its first time: such an
    answer counts from the one before it, and as nothing if it is the first.
    """
    pauses, previous_ms = [], None
    for got, at in spans:
        starts = [time for time in (previous_ms, got if got <= at else None) if time is not None]
        pauses.append(min(at - max(starts), idle_ms) if starts else 0)
        previous_ms = at
    return pauses


class WorkLog:
    """Reads the work of one run; writes nothing."""

    def __init__(self, store: Store, *, idle_s: float) -> None:
        self._store = store
        self._idle_ms = int(1000 * idle_s)

    def days(self) -> list[Day]:
        """By person and day, in this order."""
        by_day: dict[tuple[str, str], list[_Stretch]] = {}
        for stretch in self._stretches():
            day = datetime.fromtimestamp(stretch.at_ms / 1000, UTC).date().isoformat()
            by_day.setdefault((stretch.handle, day), []).append(stretch)
        days = []
        for (handle, day), stretches in sorted(by_day.items()):
            labels, worked = sum(stretch.label for stretch in stretches), sum(stretch.ms for stretch in stretches)
            days.append(Day(handle, day, labels, len(stretches) - labels, worked / 1000, stretches[0].rate))
        return days

    def seconds(self, round_id: str) -> float:
        """Work of all people for one batch."""
        return sum(stretch.ms for stretch in self._stretches() if stretch.round == round_id) / 1000

    def _stretches(self) -> list[_Stretch]:
        query = (
            select(
                answer.c.kind, answer.c.at_ms, answer.c.annotator, lease.c.leased_ms, task.c.question_round,
                annotator.c.handle, annotator.c.hourly_rate,
            )
            .join(lease, lease.c.id == answer.c.lease)
            .join(task, task.c.id == answer.c.task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .join(annotator, annotator.c.id == answer.c.annotator)
            .where(question_round.c.run == self._store.run)
            .order_by(answer.c.annotator, answer.c.seq)
        )  # fmt: skip
        with reading(self._store.engine) as connection:
            rows = connection.execute(query).all()
        people: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            people.setdefault(row.annotator, []).append(number)
        stretches = []
        for numbers in people.values():
            times = worked_ms([(rows[n].leased_ms, rows[n].at_ms) for n in numbers], self._idle_ms)
            stretches += [
                _Stretch(row.handle, row.hourly_rate, row.question_round, row.at_ms, row.kind == "label", ms)
                for row, ms in zip((rows[n] for n in numbers), times, strict=True)
            ]
        return stretches


def as_csv(days: Sequence[Day], rate: float) -> str:
    """A table for payroll; `rate` is the hourly pay of people without a rate of their own."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["person", "day", "answers", "refusals", "minutes", "pay", "rate"])
    for day in days:
        # A handle that a spreadsheet would read as a formula is quoted.
        handle = f"'{day.handle}" if day.handle[:1] in "=+-@" else day.handle
        day_rate = rate if day.rate is None else day.rate
        amounts = [f"{day.seconds / 60:.2f}", f"{day_rate * day.seconds / 3600:.2f}", f"{day_rate:.2f}"]
        lines.writerow([handle, day.day, day.answers, day.refusals, *amounts])
    return text.getvalue()
