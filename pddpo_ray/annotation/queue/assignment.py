"""Hands questions out: a question is reserved for one person for a while; then it may go to somebody else.

    leases = Leases(store, rules)
    lease = leases.lease(person)                                # a question in this person's hands for 15 minutes
    leases.heartbeat(person, lease.id)                          # ... from now on again

A question wants `needed` labels by different people. `seats + leased <= needed` always holds (the database checks it):
an answer in time always counts. Each call is one transaction; locks are taken in the order round, lease, question.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, delete, exists, insert, select, update

from pddpo_ray.annotation.people.accounts import Person
from pddpo_ray.annotation.queue.assignment_statements import (
    COUNT_OUT,
    DAY_MS,
    FIRST_OF_EACH_ROUND,
    HOLD,
    IN_HANDS,
    LOCK_PERSON,
    OFFER,
    OFFER_AGAIN,
    OFFER_GOLD,
    OVERDUE,
    midnight,
)
from pddpo_ray.annotation.queue.batch_rows import DROPPED
from pddpo_ray.annotation.queue.batches import GOLD
from pddpo_ray.annotation.queue.queue_rules import Outcome, Problem, QueueError, Rules
from pddpo_ray.journal.annotation_schema import annotator, answer, lease, question_round, seat, task, withdrawal
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.rows import record_of
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Given, Turns


def demand_mine(connection: Connection, person: Person, lease_id: str) -> Any:
    """The row of the person's own lease, locked. Raises QueueError: not_found, not_yours."""
    row = connection.execute(select(lease).where(lease.c.id == lease_id).with_for_update()).first()
    if row is None:
        raise QueueError(Problem.NOT_FOUND, f"there is no question {lease_id!r} in your hands")
    if row.annotator != person.id:
        raise QueueError(Problem.NOT_YOURS, "this question is in another person's hands")
    return row


def take_seat(connection: Connection, task_row: Any, person_id: str, answer_seq: int) -> None:
    """The answer counts: it takes the first free seat of its question."""
    taken_seats = set(connection.execute(select(seat.c.number).where(seat.c.task == task_row.id)).scalars())
    free = next(number for number in range(task_row.needed) if number not in taken_seats)
    row = {"task": task_row.id, "number": free, "needed": task_row.needed, "annotator": person_id, "answer": answer_seq}
    connection.execute(insert(seat).values(**row))
    connection.execute(update(task).where(task.c.id == task_row.id).values(seats=task.c.seats + 1))


def withdraw(
    connection: Connection, task_row: Any, answer_row: Any, *, by: str, kind: str, reason: str, at_ms: int
) -> None:
    row = {"answer": answer_row.seq, "by": by, "kind": kind, "reason": reason, "at_ms": at_ms}
    connection.execute(insert(withdrawal).values(**row))
    seats = connection.execute(delete(seat).where(seat.c.answer == answer_row.seq)).rowcount
    if seats:
        connection.execute(update(task).where(task.c.id == task_row.id).values(seats=task.c.seats - 1))
    if answer_row.outcome == Outcome.REFUSED and task_row.refusals > 0:
        connection.execute(update(task).where(task.c.id == task_row.id).values(refusals=task.c.refusals - 1))


def give_back(connection: Connection, task_id: str, rules: Rules) -> None:
    """Frees the question of a lease that ended without an answer for somebody else."""
    connection.execute(update(task).where(task.c.id == task_id).values(leased=task.c.leased - 1))
    promote(connection, task_id)
    settle(connection, task_id, rules)


def promote(connection: Connection, task_id: str) -> None:
    """Counts surplus answers, the earliest first, where labels are wanted again; not of people held back."""
    question = connection.execute(select(task).where(task.c.id == task_id).with_for_update()).one()
    taken_back = exists().where(withdrawal.c.answer == answer.c.seq)
    seated = exists().where(seat.c.task == answer.c.task, seat.c.annotator == answer.c.annotator)
    held_back = exists().where(annotator.c.id == answer.c.annotator, annotator.c.held)
    waiting = select(answer.c.seq, answer.c.annotator).where(
        answer.c.task == task_id, answer.c.outcome == Outcome.SURPLUS.value, ~taken_back, ~seated, ~held_back
    )
    free = question.needed - question.seats - question.leased
    for row in connection.execute(waiting.order_by(answer.c.seq).limit(max(free, 0))).all():
        take_seat(connection, question, row.annotator, row.seq)


def settle(connection: Connection, task_id: str, rules: Rules) -> None:
    """Sets the state of a question to what its counts say: open, satisfied or blocked; a dropped one stays so until it
    has all its labels."""
    row = connection.execute(select(task).where(task.c.id == task_id)).one()
    blocked = row.gold is None and row.refusals >= rules.refusals_max
    other_state = DROPPED if row.state == DROPPED else "blocked" if blocked else "open"
    state = "satisfied" if row.seats == row.needed else other_state
    if state != row.state:
        connection.execute(update(task).where(task.c.id == task_id).values(state=state))


@dataclass(frozen=True)
class Lease:
    """A question as its annotator sees it: no provenance, no gold, no votes of others."""

    id: str
    kind: str
    prompt: str
    left: str
    right: str | None
    expires_ms: int
    risk: float
    guideline: int
    asks: str | None = None
    """A limit's own question, in Markdown."""
    language: str | None = None
    turns: Turns = ()
    """Role and text of each turn, where the prompt is a conversation."""
    bounds: tuple[float, float] | None = None
    """Of the number that is asked for."""
    earlier: Given = field(default_factory=dict)
    """What the person answered before they took it back, as on the screen."""
    note: str = ""
    """What they wrote beside that answer."""


@dataclass(frozen=True)
class Held:
    """A question in somebody's hands, for a lead."""

    id: str
    handle: str
    round: int
    purpose: str
    leased_ms: int
    expires_ms: int


@dataclass(frozen=True)
class NoQuestion:
    """Why this person gets no question now: paused, daily_cap, holding (has enough of them), none (is left) or mild
    (none that is known to be mild, for who opted out of harmful texts).

    It makes sense to ask again after `retry_s` seconds.
    """

    reason: str
    retry_s: int


@dataclass(frozen=True)
class Today:
    """What a person did since midnight (UTC): answers, and those in which they called anything unsafe."""

    answers: int = 0
    harmful: int = 0


NOTHING_ELSEWHERE = Today()


class Leases:
    """Hands out the questions of one run."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rules = rules

    def lease(
        self, person: Person, holding: Collection[str] = (), elsewhere: Today = NOTHING_ELSEWHERE
    ) -> Lease | NoQuestion:
        """The next question, or the one this person has already (a page that was loaded again loses nothing).

        `holding` names the leases that the page shows or has fetched in advance; `elsewhere` is what the person did
        today in other databases, which counts towards their limits of a day.
        """
        offers = self.several(person, 1, holding, elsewhere)
        return offers if isinstance(offers, NoQuestion) else offers[0]

    def several(
        self, person: Person, count: int, holding: Collection[str] = (), elsewhere: Today = NOTHING_ELSEWHERE
    ) -> list[Lease] | NoQuestion:
        """Up to `count` next questions in one transaction, at least one; first those that the person has already."""
        return self._store.write(lambda connection: self._lease(connection, person, count, set(holding), elsewhere))

    def today(self, person_id: str) -> Today:
        """What the person did today in this database."""
        with reading(self._store.engine) as connection:
            rows = self._in_hands(connection, person_id)
        return Today(rows[0].done_today, rows[0].harmful_today) if rows else Today()

    def heartbeat(self, person: Person, lease_id: str) -> int:
        """The person is still at work: the lease starts again now, but nobody keeps a question longer than `hold_s`.
        Returns when it ends."""

        def apply(connection: Connection) -> int:
            row = demand_mine(connection, person, lease_id)
            expires = self._expiry(row.leased_ms)
            live = (lease.c.id == lease_id) & (lease.c.state == "leased")
            if connection.execute(update(lease).where(live).values(expires_ms=expires)).rowcount == 0:
                raise QueueError(Problem.TOO_LATE, "this question is no longer reserved for you; an answer is welcome")
            return expires

        return self._store.write(apply)

    def release(self, person: Person, lease_id: str, expires_ms: int | None = None) -> bool:
        """Gives a question back unanswered. Returns whether the person holds it no more.

        With `expires_ms`, the lease's end that the caller knows, only if it was not renewed since: a page that closes
        takes nothing from the page that follows it.
        """

        def apply(connection: Connection) -> bool:
            row = demand_mine(connection, person, lease_id)
            if row.state == "leased" and expires_ms in (None, row.expires_ms):
                self._end(connection, row, "released")
                return True
            return row.state != "leased"

        return self._store.write(apply)

    def release_all(self, person_id: str) -> None:
        """Gives back all that a person holds."""

        def apply(connection: Connection) -> None:
            in_hands = (lease.c.annotator == person_id) & (lease.c.state == "leased")
            for row in connection.execute(select(lease).where(in_hands).order_by(lease.c.task).with_for_update()).all():
                self._end(connection, row, "released")

        self._store.write(apply)

    def held(self) -> list[Held]:
        """Who holds what in the run, the longest-held first."""
        query = (
            select(
                lease.c.id, annotator.c.handle, question_round.c.round, question_round.c.purpose, lease.c.leased_ms,
                lease.c.expires_ms,
            )
            .join(annotator, annotator.c.id == lease.c.annotator)
            .join(task, task.c.id == lease.c.task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(lease.c.state == "leased", question_round.c.run == self._store.run)
            .where(~question_round.c.purpose.startswith(GOLD))
            .order_by(lease.c.leased_ms, lease.c.id)
        )  # fmt: skip
        with reading(self._store.engine) as connection:
            return [record_of(Held, row) for row in connection.execute(query)]

    def recall(self, lease_id: str, *, by: str, reason: str = "") -> None:
        """A lead takes a question out of somebody's hands; an answer that comes all the same is a late one."""

        def apply(connection: Connection) -> None:
            query = (
                select(lease)
                .join(task, task.c.id == lease.c.task)
                .join(question_round, question_round.c.id == task.c.question_round)
                .where(lease.c.id == lease_id, question_round.c.run == self._store.run)
            )
            row = connection.execute(query.with_for_update(of=lease)).first()
            if row is None:
                raise QueueError(Problem.NOT_FOUND, f"nobody holds a question {lease_id!r}")
            if row.state != "leased":
                raise QueueError(Problem.CONFLICT, f"this question is in nobody's hands: it is {row.state}")
            self._end(connection, row, "expired")
            record_event(connection, self._store.clock(), by, "lease.recall", lease_id, reason=reason)

        self._store.write(apply)

    def _end(self, connection: Connection, row: Any, state: str) -> None:
        """A lease ends without an answer."""
        connection.execute(update(lease).where(lease.c.id == row.id).values(state=state))
        give_back(connection, row.task, self._rules)

    def _expiry(self, leased_ms: int) -> int:
        """When a lease that is renewed now ends."""
        return min(self._store.clock() + self._rules.lease_ms, leased_ms + int(1000 * self._rules.hold_s))

    def _lease(
        self, connection: Connection, person: Person, count: int, holding: set[str], elsewhere: Today
    ) -> list[Lease] | NoQuestion:
        if not self._store.one_writer:
            # One request per person at a time: two tabs cannot both get the last question.
            LOCK_PERSON.run(connection, person=person.id)
        in_hands = self._in_hands(connection, person.id)
        if in_hands[0].overdue:
            self._take_back(connection)
            in_hands = self._in_hands(connection, person.id)
        if in_hands[0].paused:
            return NoQuestion("paused", 30)
        if in_hands[0].held:
            return NoQuestion("held", 60)
        leases = [row for row in in_hands if row.lease is not None]
        forgotten_rows = [row for row in sorted(leases, key=lambda row: row.leased_ms) if row.lease not in holding]
        if forgotten_rows:
            return [self._renew_lease(connection, row) for row in forgotten_rows[:count]]
        free = self._rules.leases_each - len(leases)
        if free <= 0:
            return NoQuestion("holding", 5)
        today = person.daily_cap - in_hands[0].done_today - elsewhere.answers - len(leases)
        if today <= 0:
            return NoQuestion("daily_cap", 3600)
        number, summary = min(count, free, today), in_hands[0]
        enough = summary.harmful_today + elsewhere.harmful + len(leases) >= person.harmful_cap
        reader = replace(person, sees_harmful=person.sees_harmful and not enough)
        chosen = self._choose(connection, reader, number, summary.done_today, summary.guideline or 0)
        return chosen or NoQuestion("none" if reader.sees_harmful else "dose" if person.sees_harmful else "mild", 5)

    def _in_hands(self, connection: Connection, person_id: str) -> Any:
        now = self._store.clock()
        return IN_HANDS.run(connection, person=person_id, run=self._store.run, now=now, midnight=midnight(now))

    def _renew_lease(self, connection: Connection, row: Any) -> Lease:
        expires = self._expiry(row.leased_ms)
        connection.execute(update(lease).where(lease.c.id == row.lease).values(expires_ms=expires))
        return self.view(connection, row.lease)

    def _choose(
        self, connection: Connection, person: Person, count: int, done_today: int, guideline: int
    ) -> list[Lease]:
        """The most urgent questions that need a label and are new to this person; sometimes a control question."""
        risk_max = math.inf if person.sees_harmful else self._rules.risk_max
        languages = f",{','.join(person.languages)}," if person.languages else ""
        parameters = {"person": person.id, "run": self._store.run, "risk_max": risk_max, "languages": languages}
        gold = self._gold_due(person, count, done_today)
        rows = OFFER_GOLD.run(connection, **parameters, count=gold) if gold else []
        firsts = FIRST_OF_EACH_ROUND.run(connection, **parameters) if len(rows) < count else []
        for first in sorted(firsts, key=lambda row: (-row.urgency, row.due, -row.balance, -row.priority)):
            rows += OFFER.run(
                connection,
                **parameters,
                count=count - len(rows),
                in_round=first.in_round,
                at_balance=first.balance,
                at_priority=first.priority,
                start=self._start(person),
            )
            if len(rows) == count:
                break
        return self._hand_out(connection, rows, person.id, guideline)

    def _start(self, person: Person) -> str:
        """Where this person starts among questions of equal urgency. People start at different points."""
        return f"{int(_draw(self._rules.seed, person.handle) * 16**8):08x}"

    def _gold_due(self, person: Person, count: int, done_today: int) -> int:
        """How many of the next `count` questions are control questions, by seed."""
        day = self._store.clock() // DAY_MS
        due = 0
        for number in range(done_today, done_today + count):
            rate = self._rules.gold_rate * (2 if number < self._rules.gold_first else 1)
            due += _draw(self._rules.seed, person.id, day, number) < rate
        return due

    def _hand_out(self, connection: Connection, rows: Sequence[Any], person_id: str, guideline: int) -> list[Lease]:
        """Makes the leases of questions just chosen; a lease that this person once let run out is used again."""
        now = self._store.clock()
        expires = now + self._rules.lease_ms
        common = {"annotator": person_id, "state": "leased", "guideline": guideline}
        common |= {"leased_ms": now, "expires_ms": expires}
        leases = [self._lease_fields(row, person_id, now) | common for row in rows]
        COUNT_OUT.run_each(connection, leases)
        HOLD[connection.dialect.name].run_each(connection, leases)
        return [
            _shown_lease(row, entry["id"], entry["swap"], expires, guideline)
            for row, entry in zip(rows, leases, strict=True)
        ]

    def hand_again(self, connection: Connection, task_id: str, person_id: str, guideline: int) -> None:
        """Leases a question again to the person who had it, inside the caller's transaction."""
        self._hand_out(connection, OFFER_AGAIN.run(connection, question=task_id), person_id, guideline)

    def _lease_fields(self, row: Any, person_id: str, now: int) -> dict[str, Any]:
        """A person who has seen the question before sees each answer on the same side again."""
        if row.lease is not None:
            return {"task": row.id, "id": row.lease, "swap": row.swap}
        # The id begins with the time, so that ten new leases are written to one page of their index, not to ten.
        id_, swap = f"{now:012x}{secrets.token_hex(10)}", _draw(self._rules.seed, row.id, person_id) < 0.5
        return {"task": row.id, "id": id_, "swap": swap}

    def _take_back(self, connection: Connection) -> int:
        query = select(lease.c.id, lease.c.task).where(OVERDUE).order_by(lease.c.task)
        rows = connection.execute(query.with_for_update(skip_locked=True), {"now": self._store.clock()}).all()
        for row in rows:
            self._end(connection, row, "expired")
        return len(rows)

    def view(self, connection: Connection, lease_id: str) -> Lease:
        """A question as the person who holds it sees it."""
        names = ("kind", "prompt", "first", "second", "asks", "low", "high", "risk", "language", "turns")
        query = select(lease, *(task.c[name] for name in names))
        row = connection.execute(query.join(task, task.c.id == lease.c.task).where(lease.c.id == lease_id)).one()
        return _shown_lease(row, row.id, row.swap, row.expires_ms, row.guideline)


def _shown_lease(row: Any, lease_id: str, swap: bool, expires_ms: int, guideline: int) -> Lease:
    left, right = (row.second, row.first) if swap and row.second is not None else (row.first, row.second)
    turns = json.loads(row.turns) if isinstance(row.turns, str) else row.turns  # SQLite's own cursor gives the text
    dialogue = tuple((role, text) for role, text in turns or ())
    bounds = None if row.low is None else (row.low, row.high)
    return Lease(
        lease_id,
        row.kind,
        row.prompt,
        left,
        right,
        expires_ms,
        row.risk,
        guideline,
        row.asks,
        row.language,
        dialogue,
        bounds,
    )


def _draw(*parts: int | str) -> float:
    """A number in [0, 1) that follows from its parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little") / 2.0**56
