"""The queue: hands questions to people and takes their answers; each call is one transaction.

    lease = queue.lease(person)                                 # a question in this person's hands for 15 minutes
    receipt = queue.answer(person, key, lease.id, Submission("label", {"safety": "unsafe"}))
    queue.undo(person, lease.id)                                # on second thoughts

A question wants `needed` labels by different people. `seats + leased <= needed` always holds (the database checks it),
so nobody works for nothing unless their time ran out. Locks are taken in the order round, lease, question.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, delete, exists, func, insert, select, update

from pddpo_ray.annotation.offers import (
    ANSWERED_TODAY,
    COUNT_OUT,
    DAY_MS,
    DESK,
    FRONTS,
    HOLD,
    LOCK_PERSON,
    OFFER,
    OFFER_AGAIN,
    OFFER_GOLD,
    OVERDUE,
)
from pddpo_ray.annotation.people import Person
from pddpo_ray.annotation.questions import REASONS, STORED_PAIR, screen_form, stored_form
from pddpo_ray.annotation.rounds import GOLD
from pddpo_ray.annotation.rules import Outcome, Problem, QueueError, Rules
from pddpo_ray.journal.annotation_schema import answer, lease, question_round, seat, task, withdrawal
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store

NOTE_MAX = 2000
REPLIES = ("label", "abstain", "skip", "flag")


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


@dataclass(frozen=True)
class Nothing:
    """There is no question for this person now: paused, daily_cap, holding or none. Ask again after `retry_s`."""

    reason: str
    retry_s: int


@dataclass(frozen=True)
class Submission:
    """What a person did with a question. `kind` is label, abstain (cannot tell), skip or flag."""

    kind: str
    given: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    note: str = ""
    ms_spent: int = 0
    revealed: bool = False


@dataclass(frozen=True)
class Receipt:
    """What became of an answer. `round` is the round it counts in, None if it counts in none."""

    key: str
    lease: str
    kind: str
    outcome: Outcome
    repeated: bool
    late: bool
    withdrawn: bool
    round: int | None
    policy_versions: tuple[int, ...]
    message: str


class Queue:
    """Leases, answers, undo for one run."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rules = rules

    # --- handing out ----------------------------------------------------------------------------------------------

    def lease(self, person: Person, holding: Collection[str] = ()) -> Lease | Nothing:
        """The next question, or the one this person has already (a page that was loaded again loses nothing).

        `holding` names the leases that the page shows or has fetched in advance.
        """
        found = self.leases(person, 1, holding)
        return found if isinstance(found, Nothing) else found[0]

    def leases(self, person: Person, count: int, holding: Collection[str] = ()) -> list[Lease] | Nothing:
        """Up to `count` next questions in one transaction, at least one; first those in the person's hands already."""
        return self._store.write(lambda connection: self._lease(connection, person, count, set(holding)))

    def _lease(self, connection: Connection, person: Person, count: int, holding: set[str]) -> list[Lease] | Nothing:
        if not self._store.one_writer:
            # One request per person at a time: two tabs cannot both get the last free place.
            LOCK_PERSON.run(connection, person=person.id)
        desk = self._desk(connection, person)
        if desk[0].overdue:
            self._take_back(connection)
            desk = self._desk(connection, person)
        if desk[0].paused:
            return Nothing("paused", 30)
        held = [row for row in desk if row.lease is not None]
        forgotten = [row for row in sorted(held, key=lambda row: row.leased_ms) if row.lease not in holding]
        if forgotten:
            return [self._renewed(connection, row.lease) for row in forgotten[:count]]
        places = self._rules.leases_each - len(held)
        if places <= 0:
            return Nothing("holding", 5)
        day = person.daily_cap - desk[0].done_today - len(held)
        if day <= 0:
            return Nothing("daily_cap", 3600)
        found = self._choose(connection, person, min(count, places, day), desk[0].done_today, desk[0].guideline or 0)
        return found or Nothing("none", 5)

    def _desk(self, connection: Connection, person: Person) -> Any:
        return DESK.run(
            connection, person=person.id, run=self._store.run, now=self._store.clock(), midnight=self._midnight
        )

    def _renewed(self, connection: Connection, lease_id: str) -> Lease:
        expires = self._store.clock() + self._lease_ms
        connection.execute(update(lease).where(lease.c.id == lease_id).values(expires_ms=expires))
        return self._view(connection, lease_id)

    def _choose(
        self, connection: Connection, person: Person, count: int, done_today: int, guideline: int
    ) -> list[Lease]:
        """The most urgent questions that lack a label and that this person has not met; now and then a known one."""
        risk_max = math.inf if person.sees_harmful else self._rules.risk_max
        who = {"person": person.id, "run": self._store.run, "risk_max": risk_max}
        gold = self._gold_due(person, count, done_today)
        rows = OFFER_GOLD.run(connection, **who, count=gold) if gold else []
        fronts = FRONTS.run(connection, **who) if len(rows) < count else []
        for front in sorted(fronts, key=lambda row: (-row.urgency, row.due, -row.balance, -row.priority)):
            rows += OFFER.run(
                connection,
                **who,
                count=count - len(rows),
                in_round=front.in_round,
                at_balance=front.balance,
                at_priority=front.priority,
                start=self._start(person),
            )
            if len(rows) == count:
                break
        return self._hand_out(connection, rows, person.id, guideline)

    def _start(self, person: Person) -> str:
        """Everybody starts elsewhere among questions of equal urgency, at the same place after a restart."""
        return f"{int(_draw(self._rules.seed, person.handle) * 16**8):08x}"

    def _gold_due(self, person: Person, count: int, done_today: int) -> int:
        """How many of the next `count` questions are control questions, by seed."""
        day = self._store.clock() // DAY_MS
        draws = (_draw(self._rules.seed, person.id, day, done_today + number) for number in range(count))
        return sum(draw < self._rules.gold_rate for draw in draws)

    def _hand_out(self, connection: Connection, rows: Sequence[Any], person_id: str, guideline: int) -> list[Lease]:
        """Makes the leases of questions just chosen, or wakes those that this person once let run out."""
        now = self._store.clock()
        expires = now + self._lease_ms
        every = {"annotator": person_id, "state": "leased", "guideline": guideline}
        every |= {"leased_ms": now, "expires_ms": expires}
        held = [self._held(row, person_id, now) | every for row in rows]
        COUNT_OUT.run_each(connection, held)
        HOLD[connection.dialect.name].run_each(connection, held)
        return [_shown(row, mine["id"], mine["swap"], expires, guideline) for row, mine in zip(rows, held, strict=True)]

    def _held(self, row: Any, person_id: str, now: int) -> dict[str, Any]:
        """Who met the question before sees its sides where they were."""
        if row.lease is not None:
            return {"task": row.id, "id": row.lease, "swap": row.swap}
        # The time in front: ten new leases lie on one page of their index, not on ten that must all be written.
        id_, swap = f"{now:012x}{secrets.token_hex(10)}", _draw(self._rules.seed, row.id, person_id) < 0.5
        return {"task": row.id, "id": id_, "swap": swap}

    def heartbeat(self, person: Person, lease_id: str) -> int:
        """Still at it: the lease runs from now again. Returns when it ends."""

        def apply(connection: Connection) -> int:
            self._demand_mine(connection, person, lease_id)
            expires = self._store.clock() + self._lease_ms
            live = (lease.c.id == lease_id) & (lease.c.state == "leased")
            if connection.execute(update(lease).where(live).values(expires_ms=expires)).rowcount == 0:
                raise QueueError(Problem.TOO_LATE, "this question is no longer reserved for you; an answer is welcome")
            return expires

        return self._store.write(apply)

    def release(self, person: Person, lease_id: str) -> None:
        """Gives a question back unanswered."""

        def apply(connection: Connection) -> None:
            row = self._demand_mine(connection, person, lease_id)
            if row.state == "leased":
                connection.execute(update(lease).where(lease.c.id == lease_id).values(state="released"))
                self._give_back(connection, row.task)

        self._store.write(apply)

    def expire(self) -> int:
        """Takes questions back from people whose time ran out. Returns how many."""
        with reading(self._store.engine) as connection:
            overdue = select(lease.c.id).where(OVERDUE).limit(1)
            if connection.execute(overdue, {"now": self._store.clock()}).first() is None:
                return 0
        return self._store.write(self._take_back)

    def _take_back(self, connection: Connection) -> int:
        query = select(lease.c.id, lease.c.task).where(OVERDUE).order_by(lease.c.task)
        rows = connection.execute(query.with_for_update(skip_locked=True), {"now": self._store.clock()}).all()
        for row in rows:
            connection.execute(update(lease).where(lease.c.id == row.id).values(state="expired"))
            self._give_back(connection, row.task)
        return len(rows)

    # --- answers --------------------------------------------------------------------------------------------------

    def answer(self, person: Person, key: str, lease_id: str, submission: Submission) -> Receipt:
        """Stores an answer under the client's key; the same key again returns the same receipt.

        Late answers take a free place if there is one, else they are kept as surplus. Raises QueueError: not_yours,
        answered_already, key_reused, round_closed (cancelled), malformed, not_found.
        """
        _demand_form(submission)
        return self._store.write(lambda connection: self._answer(connection, person, key, lease_id, submission))

    def _answer(
        self, connection: Connection, person: Person, key: str, lease_id: str, submission: Submission
    ) -> Receipt:
        known = connection.execute(select(answer).where(answer.c.key == key)).first()
        if known is not None:
            return self._repeated(connection, person, lease_id, submission, known)
        round_state, held, asked = self._lock(connection, person, lease_id)
        given = stored_form(asked.kind, submission.given, held.swap) if submission.kind == "label" else {}
        if held.state == "answered":
            raise QueueError(Problem.ANSWERED_ALREADY, "you answered this question already; take that back first")
        if round_state == "cancelled":
            raise QueueError(Problem.ROUND_CLOSED, "this question was withdrawn by the lead; nothing was stored")
        if held.state == "leased":
            connection.execute(update(task).where(task.c.id == asked.id).values(leased=task.c.leased - 1))
            asked = connection.execute(select(task).where(task.c.id == asked.id)).one()
        outcome = self._outcome(round_state, asked, submission)
        row = {
            "key": key,
            "lease": lease_id,
            "task": asked.id,
            "annotator": person.id,
            "kind": submission.kind,
            "given": given,
            "reason": submission.reason,
            "note": submission.note,
            "ms_spent": submission.ms_spent,
            "revealed": submission.revealed,
            "outcome": outcome.value,
            "late": held.state != "leased" or held.expires_ms <= self._store.clock() or round_state != "open",
            "guideline": held.guideline,
            "swap": held.swap,
            "at_ms": self._store.clock(),
        }
        number = int(connection.execute(insert(answer).values(**row).returning(answer.c.seq)).scalar_one())
        connection.execute(update(lease).where(lease.c.id == lease_id).values(state="answered"))
        if outcome is Outcome.COUNTED and asked.gold is None:
            self._take_seat(connection, asked, person.id, number)
        if outcome is Outcome.REFUSED:
            connection.execute(update(task).where(task.c.id == asked.id).values(refusals=task.c.refusals + 1))
        self._settle(connection, asked.id)
        stored = connection.execute(select(answer).where(answer.c.seq == number)).one()
        return self._receipt(connection, stored, repeated=False)

    def receive(self, person: Person, key: str, task_id: str, submission: Submission) -> Receipt:
        """An answer that was given elsewhere (a connector, a file): leased and stored in one transaction.

        Its labels speak of first and second, since nobody saw our left and right. All rules of `answer` hold: one
        answer per person and question, surplus where no place is free, safety labels for their open round alone.
        """
        _demand_form(submission)

        def apply(connection: Connection) -> Receipt:
            known = connection.execute(select(answer).where(answer.c.key == key)).first()
            mine = (lease.c.task == task_id) & (lease.c.annotator == person.id)
            held = connection.execute(select(lease.c.id, lease.c.swap).where(mine)).first()
            asked = connection.execute(self._task(task_id).with_for_update(of=task)).first()
            if asked is None:
                raise QueueError(Problem.NOT_FOUND, f"there is no question {task_id!r} in this run")
            if held is None:
                lease_id, swap = self._seat_elsewhere(connection, person, asked), False
            else:
                lease_id, swap = str(held.id), bool(held.swap)
            # `_answer` turns sides into places again; a form that is no answer is refused there, in its words.
            whole = submission.kind == "label" and set(submission.given) == set(_fields(asked.kind))
            given = screen_form(asked.kind, submission.given, swap) if whole else submission.given
            lease_of_key = lease_id if known is None else known.lease
            return self._answer(connection, person, key, lease_of_key, replace(submission, given=given))

        return self._store.write(apply)

    def _task(self, task_id: str) -> Any:
        run = question_round.c.run == self._store.run
        return (
            select(task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(task.c.id == task_id, run)
        )

    def _seat_elsewhere(self, connection: Connection, person: Person, asked: Any) -> str:
        """A lease for somebody who saw the question elsewhere: live if a place is free, else run out already."""
        id_, now = uuid.uuid4().hex, self._store.clock()
        free = asked.state == "open" and asked.seats + asked.leased < asked.needed
        row = {"id": id_, "task": asked.id, "annotator": person.id, "swap": False, "leased_ms": now, "guideline": 0}
        row |= {"state": "leased" if free else "expired", "expires_ms": now + (self._lease_ms if free else 0)}
        connection.execute(insert(lease).values(**row))
        if free:
            connection.execute(update(task).where(task.c.id == asked.id).values(leased=task.c.leased + 1))
        return id_

    def _repeated(
        self, connection: Connection, person: Person, lease_id: str, submission: Submission, known: Any
    ) -> Receipt:
        if known.annotator != person.id:
            raise QueueError(Problem.NOT_YOURS, "this key belongs to another person's answer")
        asked = connection.execute(select(task.c.kind).where(task.c.id == known.task)).one()
        given = stored_form(asked.kind, submission.given, known.swap) if submission.kind == "label" else {}
        if (known.lease, known.kind, known.given) != (lease_id, submission.kind, given):
            raise QueueError(Problem.KEY_REUSED, "this key was used for another answer; make a new key for a new one")
        return self._receipt(connection, known, repeated=True)

    def _outcome(self, round_state: str, asked: Any, submission: Submission) -> Outcome:
        if submission.kind != "label":
            return Outcome.REFUSED
        if asked.gold is not None:
            return Outcome.COUNTED
        # A label about safety counts only for its own round; a preference belongs to the pair and stays useful.
        closed = round_state != "open" and asked.kind == "safety"
        return Outcome.SURPLUS if closed or asked.seats + asked.leased >= asked.needed else Outcome.COUNTED

    def undo(self, person: Person, lease_id: str) -> Lease:
        """Takes back what this person said last to a question and puts it into their hands again.

        Raises QueueError: not_found if there is nothing to take back, too_late after the window, round_closed.
        """

        def apply(connection: Connection) -> Lease:
            round_state, held, asked = self._lock(connection, person, lease_id)
            last = self._standing(connection, lease_id)
            if last is None:
                raise QueueError(Problem.NOT_FOUND, "there is no answer of yours to take back here")
            if round_state != "open":
                raise QueueError(Problem.ROUND_CLOSED, "the round is closed: its answers count and cannot be changed")
            if self._store.clock() - last.at_ms > self._rules.undo_s * 1000:
                raise QueueError(
                    Problem.TOO_LATE, f"answers can be taken back for {self._rules.undo_s / 60:.0f} minutes"
                )
            self._withdraw(connection, asked, last, person.id, "undo", "")
            fresh = connection.execute(select(task).where(task.c.id == asked.id)).one()
            if fresh.seats + fresh.leased < fresh.needed:
                again = OFFER_AGAIN.run(connection, question=asked.id)
                self._hand_out(connection, again, person.id, held.guideline)
            else:
                # The place went to someone else meanwhile; what follows is kept as surplus.
                connection.execute(update(lease).where(lease.c.id == lease_id).values(state="expired"))
            self._settle(connection, asked.id)
            return self._view(connection, lease_id)

        return self._store.write(apply)

    def void(self, key: str, *, by: str, reason: str) -> None:
        """An admin takes a label out of the count; it stays stored, and somebody else is asked."""

        def apply(connection: Connection) -> None:
            row = connection.execute(self._answers().where(answer.c.key == key)).first()
            if row is None:
                raise QueueError(Problem.NOT_FOUND, f"there is no answer {key!r}")
            state = connection.execute(
                select(question_round.c.state)
                .join(task, task.c.question_round == question_round.c.id)
                .where(task.c.id == row.task)
                .with_for_update(read=True, of=question_round)
            ).scalar_one()
            asked = connection.execute(select(task).where(task.c.id == row.task).with_for_update()).one()
            if state != "open":
                raise QueueError(Problem.ROUND_CLOSED, "the round is closed: its labels are fixed")
            if connection.execute(select(withdrawal.c.answer).where(withdrawal.c.answer == row.seq)).first():
                raise QueueError(Problem.CONFLICT, "this answer was taken back already")
            self._withdraw(connection, asked, row, by, "void", reason)
            self._promote(connection, asked.id)
            self._settle(connection, asked.id)
            record_event(connection, self._store.clock(), by, "answer.void", key, reason=reason)

        self._store.write(apply)

    # --- looking --------------------------------------------------------------------------------------------------

    def receipt(self, person: Person, key: str) -> Receipt:
        """The receipt of one's own answer, as things stand now."""
        with reading(self._store.engine) as connection:
            query = self._answers().where(answer.c.key == key, answer.c.annotator == person.id)
            row = connection.execute(query).first()
            if row is None:
                raise QueueError(Problem.NOT_FOUND, f"you have no answer {key!r}")
            return self._receipt(connection, row, repeated=True)

    def receipts(self, person: Person, before: int | None, limit: int) -> list[tuple[int, Receipt]]:
        """One's own answers, the newest first, with their numbers; `before` continues a listing."""
        query = self._answers().where(answer.c.annotator == person.id)
        if before is not None:
            query = query.where(answer.c.seq < before)
        with reading(self._store.engine) as connection:
            rows = connection.execute(query.order_by(answer.c.seq.desc()).limit(limit)).all()
            return [(row.seq, self._receipt(connection, row, repeated=True)) for row in rows]

    def progress(self, person: Person) -> dict[str, int]:
        """One's own numbers: answers today and in all (not those taken back), and the daily cap."""
        mine = (answer.c.annotator == person.id) & ~exists().where(withdrawal.c.answer == answer.c.seq)
        with reading(self._store.engine) as connection:
            total = connection.execute(select(func.count()).select_from(answer).where(mine)).scalar_one()
            return {
                "today": connection.execute(
                    ANSWERED_TODAY, {"person": person.id, "midnight": self._midnight}
                ).scalar_one(),
                "total": total,
                "daily_cap": person.daily_cap,
            }

    # --- inside a transaction -------------------------------------------------------------------------------------

    @property
    def _lease_ms(self) -> int:
        return int(self._rules.lease_s * 1000)

    def _answers(self) -> Any:
        return (
            select(answer)
            .join(task, task.c.id == answer.c.task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(question_round.c.run == self._store.run)
        )

    @property
    def _midnight(self) -> int:
        return self._store.clock() // DAY_MS * DAY_MS

    def _demand_mine(self, connection: Connection, person: Person, lease_id: str) -> Any:
        row = connection.execute(select(lease).where(lease.c.id == lease_id).with_for_update()).first()
        if row is None:
            raise QueueError(Problem.NOT_FOUND, f"there is no question {lease_id!r} in your hands")
        if row.annotator != person.id:
            raise QueueError(Problem.NOT_YOURS, "this question is in another person's hands")
        return row

    def _lock(self, connection: Connection, person: Person, lease_id: str) -> tuple[str, Any, Any]:
        """State of the round, the lease and the question, locked in the order that all follow."""
        state = connection.execute(
            select(question_round.c.state)
            .join(task, task.c.question_round == question_round.c.id)
            .join(lease, lease.c.task == task.c.id)
            .where(lease.c.id == lease_id, question_round.c.run == self._store.run)
            .with_for_update(read=True, of=question_round)
        ).scalar()
        if state is None:
            raise QueueError(Problem.NOT_FOUND, f"there is no question {lease_id!r} in your hands")
        held = self._demand_mine(connection, person, lease_id)
        asked = connection.execute(select(task).where(task.c.id == held.task).with_for_update()).one()
        return str(state), held, asked

    def _standing(self, connection: Connection, lease_id: str) -> Any:
        """The answer of a lease that was not taken back."""
        taken_back = exists().where(withdrawal.c.answer == answer.c.seq)
        query = select(answer).where(answer.c.lease == lease_id, ~taken_back).order_by(answer.c.seq.desc())
        return connection.execute(query.limit(1)).first()

    def _take_seat(self, connection: Connection, asked: Any, person_id: str, number: int) -> None:
        taken = set(connection.execute(select(seat.c.place).where(seat.c.task == asked.id)).scalars())
        place = next(free for free in range(asked.needed) if free not in taken)
        row = {"task": asked.id, "place": place, "needed": asked.needed, "annotator": person_id, "answer": number}
        connection.execute(insert(seat).values(**row))
        connection.execute(update(task).where(task.c.id == asked.id).values(seats=task.c.seats + 1))

    def _withdraw(self, connection: Connection, asked: Any, standing: Any, by: str, kind: str, reason: str) -> None:
        row = {"answer": standing.seq, "by": by, "kind": kind, "reason": reason, "at_ms": self._store.clock()}
        connection.execute(insert(withdrawal).values(**row))
        freed = connection.execute(delete(seat).where(seat.c.answer == standing.seq)).rowcount
        if freed:
            connection.execute(update(task).where(task.c.id == asked.id).values(seats=task.c.seats - 1))
        if standing.outcome == Outcome.REFUSED and asked.refusals > 0:
            connection.execute(update(task).where(task.c.id == asked.id).values(refusals=task.c.refusals - 1))

    def _give_back(self, connection: Connection, task_id: str) -> None:
        """A lease ended without an answer: its place is free again."""
        connection.execute(update(task).where(task.c.id == task_id).values(leased=task.c.leased - 1))
        self._promote(connection, task_id)
        self._settle(connection, task_id)

    def _promote(self, connection: Connection, task_id: str) -> None:
        """Gives free places to answers that came too late before, the earliest first."""
        asked = connection.execute(select(task).where(task.c.id == task_id).with_for_update()).one()
        taken_back = exists().where(withdrawal.c.answer == answer.c.seq)
        seated = exists().where(seat.c.task == answer.c.task, seat.c.annotator == answer.c.annotator)
        waiting = select(answer.c.seq, answer.c.annotator).where(
            answer.c.task == task_id, answer.c.outcome == Outcome.SURPLUS.value, ~taken_back, ~seated
        )
        free = asked.needed - asked.seats - asked.leased
        for row in connection.execute(waiting.order_by(answer.c.seq).limit(max(free, 0))).all():
            self._take_seat(connection, asked, row.annotator, row.seq)

    def _settle(self, connection: Connection, task_id: str) -> None:
        """Open, satisfied or blocked, as the counts say."""
        row = connection.execute(select(task).where(task.c.id == task_id)).one()
        blocked = row.gold is None and row.refusals >= self._rules.refusals_max
        state = "satisfied" if row.seats == row.needed else "blocked" if blocked else "open"
        if state != row.state:
            connection.execute(update(task).where(task.c.id == task_id).values(state=state))

    def _view(self, connection: Connection, lease_id: str) -> Lease:
        query = select(lease, task.c.kind, task.c.prompt, task.c.first, task.c.second, task.c.risk)
        row = connection.execute(query.join(task, task.c.id == lease.c.task).where(lease.c.id == lease_id)).one()
        return _shown(row, row.id, row.swap, row.expires_ms, row.guideline)

    def _receipt(self, connection: Connection, row: Any, *, repeated: bool) -> Receipt:
        query = (
            select(question_round.c.round, question_round.c.purpose, task.c.provenance)
            .select_from(task.join(question_round, question_round.c.id == task.c.question_round))
            .where(task.c.id == row.task)
        )
        asked = connection.execute(query).one()
        seated = connection.execute(select(seat.c.place).where(seat.c.answer == row.seq)).first() is not None
        withdrawn = connection.execute(select(withdrawal.c.answer).where(withdrawal.c.answer == row.seq)).first()
        gold = asked.purpose.startswith(GOLD)
        standing = Outcome.COUNTED if seated or (gold and row.kind == "label") else Outcome(row.outcome)
        versions = tuple(
            asked.provenance[name] for name in ("policy_version", "second_policy_version") if name in asked.provenance
        )
        return Receipt(
            key=row.key,
            lease=row.lease,
            kind=row.kind,
            outcome=standing,
            repeated=repeated,
            late=row.late,
            withdrawn=withdrawn is not None,
            round=asked.round if seated else None,
            policy_versions=versions,
            message=_message(standing, row.late, withdrawn is not None),
        )


def _shown(row: Any, lease_id: str, swap: bool, expires_ms: int, guideline: int) -> Lease:
    left, right = (row.second, row.first) if swap and row.second is not None else (row.first, row.second)
    return Lease(lease_id, row.kind, row.prompt, left, right, expires_ms, row.risk, guideline)


def _message(outcome: Outcome, late: bool, withdrawn: bool) -> str:
    if withdrawn:
        return "Taken back."
    if outcome is Outcome.SURPLUS:
        return "Thank you. Others were faster on this one: your answer is kept, but does not count in this round."
    if outcome is Outcome.REFUSED:
        return "Noted. Somebody else will be asked."
    return "Stored, a little late but in time to count." if late else "Stored."


def _fields(kind: str) -> tuple[str, ...]:
    """Names of a stored answer."""
    return ("safety",) if kind == "safety" else STORED_PAIR


def _demand_form(submission: Submission) -> None:
    if submission.kind not in REPLIES:
        raise QueueError(Problem.MALFORMED, f"kind must be one of {', '.join(REPLIES)}, not {submission.kind!r}")
    if submission.kind in ("skip", "flag") and submission.reason not in REASONS:
        raise QueueError(Problem.MALFORMED, f"a {submission.kind} needs a reason: {', '.join(REASONS)}")
    if submission.kind != "label" and submission.given:
        raise QueueError(Problem.MALFORMED, f"a {submission.kind} has no labels in it")
    if len(submission.note) > NOTE_MAX:
        raise QueueError(Problem.MALFORMED, f"a note has at most {NOTE_MAX} characters")


def _draw(*parts: int | str) -> float:
    """A number in [0, 1) that follows from its parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little") / 2.0**56
