"""Takes back what clients gave to training: their prompts, the answers to them, and every label and pair of those.

Rows of finished rounds go; those of the round that is under way keep their places, without any text, until it ends:
the driver erases again then, and so it does with what it wrote meanwhile. What is left is that something was withdrawn
(`served_withdrawal`, the audit log), numbers that a round summed up, and what its weights learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from pddpo_ray.journal.annotation_schema import question_round, task
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import empty_write_ahead_log, overwrite_deleted
from pddpo_ray.journal.schema import measurement, pair, pair_label, prompt, round_, sample
from pddpo_ray.journal.served import withdrawn_prompts
from pddpo_ray.journal.served_schema import served_answer, served_prompt, served_withdrawal
from pddpo_ray.journal.transactions import Store

GONE = "(withdrawn)"
"""Stands where a text was."""
NOTES = "notes"
"""In a question's provenance: what readers wrote with their verdicts."""
AT_ONCE = 500
"""Names in one statement: databases bound their number."""


@dataclass(frozen=True)
class Withdrawn:
    """What went: prompts and answers that were kept, answers that the run drew, pairs, questions to people."""

    prompts: int
    replies: int
    samples: int
    pairs: int
    questions: int


def withdraw(store: Store, prompts: Sequence[str], *, by: str, reply: str = "") -> Withdrawn:
    """Erases these kept prompts and all that came of them; with `reply`, also the question that its feedback became."""

    def apply(connection: Connection) -> Withdrawn:
        overwrite_deleted(connection)
        replies = _drop_served_prompts(connection, store.run, prompts)
        row = {"run": store.run, "by": by, "at_ms": store.clock()}
        earlier = connection.execute(select(served_withdrawal.c.prompt).where(served_withdrawal.c.run == store.run))
        new_prompts = sorted(set(prompts) - set(earlier.scalars()))
        if new_prompts:
            connection.execute(insert(served_withdrawal), [{**row, "prompt": name} for name in new_prompts])
        erased = erase(connection, store.run, prompts, below=_round_under_way(connection, store.run))
        questions = _forget_questions(connection, store.run, [*replies, *([reply] if reply else [])], task.c.item)
        record_event(connection, store.clock(), by, "serving.withdraw", reply or "prompts", prompts=len(prompts))
        return Withdrawn(len(prompts), len(replies), erased.samples, erased.pairs, questions + erased.questions)

    counts = store.write(apply)
    empty_write_ahead_log(store.engine)
    return counts


def erase_withdrawn(engine: Engine, run: str, *, through: int) -> Withdrawn:
    """Erases again what was withdrawn while rounds up to `through` were under way: their driver had it in memory."""
    names = sorted(withdrawn_prompts(engine, run))
    if not names:
        return Withdrawn(0, 0, 0, 0, 0)
    with engine.begin() as connection:
        overwrite_deleted(connection)
        counts = erase(connection, run, names, below=through + 1)
    empty_write_ahead_log(engine)
    return counts


def erase(connection: Connection, run: str, prompts: Sequence[str], *, below: int) -> Withdrawn:
    """Takes the texts of these prompts and of all answers to them out of the journal, and out of rounds before `below`
    their labels and pairs too."""
    texts = [
        text
        for names in _parts(prompts)
        for text in connection.execute(select(prompt.c.text).where(prompt.c.run == run, prompt.c.id.in_(names)))
        .scalars()
        .all()
        if text != GONE
    ]
    questions = _forget_questions(connection, run, texts, task.c.prompt)
    samples: list[str] = []
    pairs: list[str] = []
    for names in _parts(prompts):
        condition = (sample.c.run == run) & sample.c.prompt.in_(names)
        for row in connection.execute(select(sample.c.id, sample.c.token_ids).where(condition)).all():
            samples.append(row.id)
            # an answer of no token would be none: what reads it back wants one
            change = update(sample).where(sample.c.run == run, sample.c.id == row.id)
            connection.execute(change.values(token_ids=row.token_ids[-1:], text=GONE))
        for row in connection.execute(
            select(prompt.c.id, prompt.c.token_ids).where(prompt.c.run == run, prompt.c.id.in_(names))
        ).all():
            change = update(prompt).where(prompt.c.run == run, prompt.c.id == row.id)
            connection.execute(change.values(token_ids=row.token_ids[:1], text=GONE, messages=[["user", GONE]]))
    for names in _parts(samples):
        condition = (pair.c.run == run) & pair.c.first.in_(names) & (pair.c.round < below)
        pairs += connection.execute(select(pair.c.id).where(condition)).scalars().all()
        old = (measurement.c.run == run) & measurement.c.sample.in_(names) & (measurement.c.round < below)
        connection.execute(delete(measurement).where(old))
    for names in _parts(pairs):
        connection.execute(delete(pair_label).where(pair_label.c.run == run, pair_label.c.pair.in_(names)))
        connection.execute(delete(pair).where(pair.c.run == run, pair.c.id.in_(names)))
    return Withdrawn(len(prompts), 0, len(samples), len(pairs), questions)


def _round_under_way(connection: Connection, run: str) -> int:
    last = select(func.max(round_.c.round)).where(round_.c.run == run, round_.c.finished_ms.is_not(None))
    return (connection.execute(last).scalar() or 0) + 1


def _drop_served_prompts(connection: Connection, run: str, prompts: Sequence[str]) -> list[str]:
    """Deletes what was kept; returns the replies that went with it."""
    replies: list[str] = []
    for names in _parts(prompts):
        condition = (served_answer.c.run == run) & served_answer.c.prompt.in_(names)
        replies += connection.execute(select(served_answer.c.id).where(condition)).scalars().all()
        connection.execute(delete(served_answer).where(condition))
        connection.execute(delete(served_prompt).where(served_prompt.c.run == run, served_prompt.c.id.in_(names)))
    return replies


def _forget_questions(connection: Connection, run: str, values: Sequence[str], column: Any) -> int:
    """Empties the questions to people in which `column` has one of these values; open ones are asked no more."""
    questions = 0
    of_run = select(question_round.c.id).where(question_round.c.run == run)
    for names in _parts(values):
        condition = task.c.question_round.in_(of_run) & column.in_(names)
        for row in connection.execute(select(task.c.id, task.c.second, task.c.provenance).where(condition)).all():
            questions += 1
            provenance = {name: value for name, value in row.provenance.items() if name != NOTES}
            change = update(task).where(task.c.id == row.id)
            connection.execute(
                change.values(
                    prompt=GONE,
                    turns=None,
                    first=GONE,
                    second=None if row.second is None else GONE,
                    provenance=provenance,
                )
            )
            connection.execute(change.where(task.c.state == "open").values(state="dropped"))
    return questions


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(names), AT_ONCE):
        yield names[begin : begin + AT_ONCE]
