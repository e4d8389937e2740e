"""The SQL statements that choose and hand out questions; each is compiled once, which takes longer than one run of it.

A statement reads the index `ix_task_offer` from its most urgent end and stops at the first question that the person has
not seen. Its cost grows with the number of questions that this person has seen, not with the number that wait.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, Text, bindparam, cast, exists, func, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from pddpo_ray.annotation.queue.batch_rows import DROPPED
from pddpo_ray.annotation.queue.batches import GOLD
from pddpo_ray.journal.annotation_schema import (
    annotator,
    answer,
    campaign,
    guideline,
    lease,
    question_round,
    task,
    withdrawal,
)
from pddpo_ray.journal.database import Prepared

DAY_MS = 24 * 3600 * 1000


def midnight(now_ms: int) -> int:
    """When the day began, in UTC."""
    return now_ms // DAY_MS * DAY_MS


MINE = lease.c.annotator == bindparam("person")
MET = (lease.c.state == "leased") | (lease.c.state == "answered")
OPEN_HERE = (question_round.c.run == bindparam("run")) & (question_round.c.state == "open")

LOCK_PERSON = Prepared(select(annotator.c.id).where(annotator.c.id == bindparam("person")).with_for_update())

OVERDUE = (lease.c.state == "leased") & (lease.c.expires_ms <= bindparam("now"))

ANSWERED_TODAY = (
    select(func.count())
    .select_from(answer)
    .where(answer.c.annotator == bindparam("person"), answer.c.at_ms >= bindparam("midnight"))
    .where(~exists().where(withdrawal.c.answer == answer.c.seq))
)

HARMFUL_TODAY = ANSWERED_TODAY.where(cast(answer.c.given, Text).like('%"unsafe"%'))
"""Answers in which the person called anything unsafe, whatever risk a model gave the question."""

IN_HANDS = Prepared(
    select(
        select(campaign.c.paused).where(campaign.c.run == bindparam("run")).scalar_subquery().label("paused"),
        select(func.max(guideline.c.version))
        .where(guideline.c.run == bindparam("run"))
        .scalar_subquery()
        .label("guideline"),
        exists().where(OVERDUE).correlate(None).label("overdue"),
        ANSWERED_TODAY.scalar_subquery().label("done_today"),
        HARMFUL_TODAY.scalar_subquery().label("harmful_today"),
        annotator.c.held,
        lease.c.id.label("lease"),
        lease.c.leased_ms,
    )
    .select_from(annotator.outerjoin(lease, (lease.c.annotator == annotator.c.id) & (lease.c.state == "leased")))
    .where(annotator.c.id == bindparam("person"))
)
"""What is read before a question is chosen: a row for each lease in the person's hands, or one row without a lease."""


def _is_suitable(question: FromClause) -> ColumnElement[bool]:
    past_lease = exists().where(lease.c.task == question.c.id, MINE, MET)
    return (question.c.risk <= bindparam("risk_max")) & _is_understood(question) & ~past_lease


def _is_understood(question: FromClause) -> ColumnElement[bool]:
    """A question in no particular language, or in one of the person's; `languages` is "" for who said none, else codes
    between commas, e.g. ",de,en,"."""
    languages = bindparam("languages", type_=Text)
    own_language = languages.like(literal("%,") + question.c.language + literal(",%"))
    return question.c.language.is_(None) | (languages == "") | own_language


def _urgency(question: FromClause) -> tuple[Any, ...]:
    """Questions nearest to completion first, then by priority; ties are shuffled by the id, which is a hash."""
    return question.c.balance.desc(), question.c.priority.desc(), question.c.id.desc()


def _first_of_each_round() -> Any:
    waiting = task.alias("waiting")
    most_urgent = (
        select(waiting.c.id)
        .where(waiting.c.question_round == question_round.c.id, waiting.c.balance < 0, _is_suitable(waiting))
        .order_by(*_urgency(waiting))
        .limit(1)
        .correlate(question_round)
        .scalar_subquery()
    )
    return (
        select(
            question_round.c.id.label("in_round"),
            question_round.c.priority.label("urgency"),
            func.coalesce(question_round.c.deadline_ms, question_round.c.opened_ms + 365 * DAY_MS).label("due"),
            task.c.balance,
            task.c.priority,
        )
        .select_from(question_round.join(task, task.c.id == most_urgent))
        .where(OPEN_HERE)
    )


FIRST_OF_EACH_ROUND = Prepared(_first_of_each_round())
"""The most urgent question of every open batch that has one for the person."""


def _offer(*where: ColumnElement[bool]) -> Select[Any]:
    """Questions as a person sees them, each with the lease that this person let run out, if any."""
    return (
        select(
            task.c.id,
            task.c.kind,
            task.c.prompt,
            task.c.first,
            task.c.second,
            task.c.asks,
            task.c.low,
            task.c.high,
            task.c.risk,
            task.c.language,
            task.c.turns,
            lease.c.id.label("lease"),
            lease.c.swap,
        )
        .select_from(task.outerjoin(lease, (lease.c.task == task.c.id) & MINE))
        .where(*where)
        # Nobody else may take the question before its lease is counted; what others are taking right now is left out.
        .with_for_update(of=task, skip_locked=True)
    )


def _urgent(*where: ColumnElement[bool]) -> Any:
    in_round = task.c.question_round == bindparam("in_round")
    return _offer(in_round, _NEW, *where).order_by(*_urgency(task)).limit(bindparam("count")).subquery()


_NEW = (task.c.risk <= bindparam("risk_max")) & _is_understood(task) & (lease.c.id.is_(None) | ~MET)
_FROM_START = (
    (task.c.balance == bindparam("at_balance"))
    & (task.c.priority == bindparam("at_priority"))
    & (task.c.id <= bindparam("start"))
)

OFFER = Prepared(
    select(_urgent(_FROM_START)).union_all(select(_urgent(task.c.balance < 0, ~_FROM_START))).limit(bindparam("count"))
)
"""Equally urgent questions from `start` on, then the others in the order of the index."""

_CONTROL = task.c.gold.is_not(None) & (task.c.state != DROPPED)
OFFER_GOLD = Prepared(
    _offer(OPEN_HERE, question_round.c.purpose.startswith(GOLD), _CONTROL, _NEW)
    .join(question_round, question_round.c.id == task.c.question_round)
    .order_by(task.c.id)
    .limit(bindparam("count"))
)

OFFER_AGAIN = Prepared(_offer(task.c.id == bindparam("question")))
"""A question that the person gets back."""

COUNT_OUT = Prepared(update(task).where(task.c.id == bindparam("task")).values(leased=task.c.leased + 1))
"""One more person has the question in their hands."""


def _holding(insert: Any) -> Prepared:
    times = ("state", "leased_ms", "expires_ms", "guideline")
    statement = insert(lease)
    upsert = statement.on_conflict_do_update(
        index_elements=[lease.c.task, lease.c.annotator], set_={name: statement.excluded[name] for name in times}
    )
    return Prepared(upsert)


HOLD = {"sqlite": _holding(sqlite.insert), "postgresql": _holding(postgresql.insert)}
"""Makes a lease, or renews one that the person once let expire; the sides stay where they were."""
