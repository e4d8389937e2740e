"""Takes answers in: counts them, keeps what comes too late, and lets people think again.

    answers = Answers(store, rules)
    receipt = answers.answer(person, key, lease.id, Submission("label", {"safety": "unsafe"}))
    answers.undo(person, lease.id)                              # on second thoughts

Each call is one transaction; locks are taken in the order round, lease, question.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, exists, func, insert, select, update

from pddpo_ray.annotation.people.accounts import Person
from pddpo_ray.annotation.queue.answer_forms import REASONS, STORED, screen_form, stored_form
from pddpo_ray.annotation.queue.assignment import Lease, Leases, demand_mine, promote, settle, take_seat, withdraw
from pddpo_ray.annotation.queue.assignment_statements import ANSWERED_TODAY, midnight
from pddpo_ray.annotation.queue.batches import GOLD
from pddpo_ray.annotation.queue.queue_rules import Outcome, Problem, QueueError, Rules
from pddpo_ray.annotation.review.given_labels import keys_read, why_fixed
from pddpo_ray.journal.annotation_schema import annotator, answer, lease, question_round, seat, task, withdrawal
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Given

NOTE_MAX = 2000
REPLIES = ("label", "abstain", "skip", "flag")


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


class Answers:
    """Takes in the answers to the questions of one run."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rules = rules
        self._leases = Leases(store, rules)

    def answer(self, person: Person, key: str, lease_id: str, submission: Submission) -> Receipt:
        """Stores an answer under the client's key; the same key again returns the same receipt.

        A late answer counts if a label is still wanted, else it is kept as surplus. Raises QueueError: not_yours,
        answered_already, key_reused, round_closed (cancelled), malformed, not_found.
        """
        _demand_form(submission)

        def apply(connection: Connection) -> Receipt:
            leased_ms = connection.execute(select(lease.c.leased_ms).where(lease.c.id == lease_id)).scalar()
            # A client's clock may be wrong or lie: nobody spent more time than passed here since they got the question.
            elapsed_ms = max(self._store.clock() - (leased_ms or 0), 0)
            timed = replace(submission, ms_spent=min(submission.ms_spent, elapsed_ms))
            return self._answer(connection, person, key, lease_id, timed)

        return self._store.write(apply)

    def receive(self, person: Person, key: str, task_id: str, submission: Submission) -> Receipt:
        """An answer that was given elsewhere (a connector, a file): leased and stored in one transaction.

        Its labels speak of first and second, since nobody saw our left and right. All rules of `answer` hold: one
        answer per person and question, surplus where no label is wanted, safety labels for their open round alone.
        """
        _demand_form(submission)

        def apply(connection: Connection) -> Receipt:
            stored_row = connection.execute(select(answer).where(answer.c.key == key)).first()
            own_lease = (lease.c.task == task_id) & (lease.c.annotator == person.id)
            lease_row = connection.execute(select(lease.c.id, lease.c.swap).where(own_lease)).first()
            question = connection.execute(self._task(task_id).with_for_update(of=task)).first()
            if question is None:
                raise QueueError(Problem.NOT_FOUND, f"there is no question {task_id!r} in this run")
            if lease_row is None:
                lease_id, swap = self._lease_elsewhere(connection, person, question), False
            else:
                lease_id, swap = str(lease_row.id), bool(lease_row.swap)
            # `_answer` turns left and right back into first and second, and refuses a form that is no answer.
            whole = submission.kind == "label" and set(submission.given) == set(STORED[question.kind])
            values = screen_form(question.kind, submission.given, swap) if whole else submission.given
            lease_of_key = lease_id if stored_row is None else stored_row.lease
            return self._answer(connection, person, key, lease_of_key, replace(submission, given=values))

        return self._store.write(apply)

    def undo(self, person: Person, lease_id: str) -> Lease:
        """Withdraws this person's last answer to a question and leases the question to them again.

        Raises QueueError: not_found if there is nothing to take back, too_late after the window, round_closed.
        """

        def apply(connection: Connection) -> Lease:
            round_state, lease_row, question = self._lock(connection, person, lease_id)
            last = self._last_answer(connection, lease_id)
            if last is None:
                raise QueueError(Problem.NOT_FOUND, "there is no answer of yours to take back here")
            if round_state != "open":
                raise QueueError(Problem.ROUND_CLOSED, "the round is closed: its answers count and cannot be changed")
            if self._store.clock() - last.at_ms > self._rules.undo_s * 1000:
                raise QueueError(
                    Problem.TOO_LATE, f"answers can be taken back for {self._rules.undo_s / 60:.0f} minutes"
                )
            withdraw(connection, question, last, by=person.id, kind="undo", reason="", at_ms=self._store.clock())
            fresh = connection.execute(select(task).where(task.c.id == question.id)).one()
            if fresh.seats + fresh.leased < fresh.needed:
                self._leases.hand_again(connection, question.id, person.id, lease_row.guideline)
            else:
                # Somebody else took the question meanwhile; a further answer is kept as surplus.
                connection.execute(update(lease).where(lease.c.id == lease_id).values(state="expired"))
            settle(connection, question.id, self._rules)
            form = screen_form(question.kind, last.given, last.swap) if last.kind == "label" else {}
            return replace(self._leases.view(connection, lease_id), earlier=form, note=last.note)

        return self._store.write(apply)

    def void(self, key: str, *, by: str, reason: str) -> None:
        """A lead takes a label out of the count; it stays stored, and somebody else is asked while its batch is open.

        Raises QueueError: malformed without a reason, not_found, conflict if it was taken back already, round_closed
        if the run has used it or its batch was stopped.
        """
        if not reason.strip():
            raise QueueError(Problem.MALFORMED, "say why: the reason is kept with the label")

        def apply(connection: Connection) -> None:
            row = connection.execute(self._answers().where(answer.c.key == key)).first()
            if row is None:
                raise QueueError(Problem.NOT_FOUND, f"there is no answer {key!r}")
            batch = connection.execute(
                select(question_round)
                .join(task, task.c.question_round == question_round.c.id)
                .where(task.c.id == row.task)
                .with_for_update(read=True, of=question_round)
            ).one()
            question = connection.execute(select(task).where(task.c.id == row.task).with_for_update()).one()
            if fixed := why_fixed(batch, key in keys_read(connection, batch.id)):
                raise QueueError(Problem.ROUND_CLOSED, fixed)
            if connection.execute(select(withdrawal.c.answer).where(withdrawal.c.answer == row.seq)).first():
                raise QueueError(Problem.CONFLICT, "this answer was taken back or taken out: it does not count already")
            self.take_out(connection, question, row, by=by, reason=reason)
            record_event(connection, self._store.clock(), by, "answer.void", key, reason=reason)

        self._store.write(apply)

    def take_out(self, connection: Connection, task_row: Any, answer_row: Any, *, by: str, reason: str) -> None:
        """Inside the caller's transaction: an answer counts no more, and somebody else is asked."""
        withdraw(connection, task_row, answer_row, by=by, kind="void", reason=reason, at_ms=self._store.clock())
        promote(connection, task_row.id)
        settle(connection, task_row.id, self._rules)

    def receipt(self, person: Person, key: str) -> Receipt:
        """The receipt of one's own answer; what became of it may have changed since it was given."""
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
        own_answers = (answer.c.annotator == person.id) & ~exists().where(withdrawal.c.answer == answer.c.seq)
        with reading(self._store.engine) as connection:
            total = connection.execute(select(func.count()).select_from(answer).where(own_answers)).scalar_one()
            return {
                "today": connection.execute(
                    ANSWERED_TODAY, {"person": person.id, "midnight": midnight(self._store.clock())}
                ).scalar_one(),
                "total": total,
                "daily_cap": person.daily_cap,
            }

    def _answer(
        self, connection: Connection, person: Person, key: str, lease_id: str, submission: Submission
    ) -> Receipt:
        stored_row = connection.execute(select(answer).where(answer.c.key == key)).first()
        if stored_row is not None:
            return self._repeated_receipt(connection, person, lease_id, submission, stored_row)
        round_state, lease_row, question = self._lock(connection, person, lease_id)
        values = _stored_values(question, submission, lease_row.swap)
        if lease_row.state == "answered":
            raise QueueError(Problem.ANSWERED_ALREADY, "you answered this question already; take that back first")
        if round_state == "cancelled":
            raise QueueError(Problem.ROUND_CLOSED, "this question was withdrawn by the lead; nothing was stored")
        if lease_row.state == "leased":
            connection.execute(update(task).where(task.c.id == question.id).values(leased=task.c.leased - 1))
            question = connection.execute(select(task).where(task.c.id == question.id)).one()
        held_back = connection.execute(select(annotator.c.held).where(annotator.c.id == person.id)).scalar()
        outcome = self._outcome(round_state, question, submission, bool(held_back))
        row = {
            "key": key,
            "lease": lease_id,
            "task": question.id,
            "annotator": person.id,
            "kind": submission.kind,
            "given": values,
            "reason": submission.reason,
            "note": submission.note,
            "ms_spent": submission.ms_spent,
            "revealed": submission.revealed,
            "outcome": outcome.value,
            "late": lease_row.state != "leased" or lease_row.expires_ms <= self._store.clock() or round_state != "open",
            "guideline": lease_row.guideline,
            "swap": lease_row.swap,
            "at_ms": self._store.clock(),
        }
        number = int(connection.execute(insert(answer).values(**row).returning(answer.c.seq)).scalar_one())
        connection.execute(update(lease).where(lease.c.id == lease_id).values(state="answered"))
        if outcome is Outcome.COUNTED and question.gold is None:
            take_seat(connection, question, person.id, number)
        if outcome is Outcome.REFUSED:
            connection.execute(update(task).where(task.c.id == question.id).values(refusals=task.c.refusals + 1))
        settle(connection, question.id, self._rules)
        stored = connection.execute(select(answer).where(answer.c.seq == number)).one()
        return self._receipt(connection, stored, repeated=False)

    def _task(self, task_id: str) -> Any:
        run = question_round.c.run == self._store.run
        return (
            select(task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(task.c.id == task_id, run)
        )

    def _lease_elsewhere(self, connection: Connection, person: Person, question: Any) -> str:
        """A lease for somebody who saw the question elsewhere; it has ended already if no label is wanted."""
        id_, now = uuid.uuid4().hex, self._store.clock()
        free = question.state == "open" and question.seats + question.leased < question.needed
        row = {"id": id_, "task": question.id, "annotator": person.id, "swap": False, "leased_ms": now, "guideline": 0}
        row |= {"state": "leased" if free else "expired", "expires_ms": now + (self._rules.lease_ms if free else 0)}
        connection.execute(insert(lease).values(**row))
        if free:
            connection.execute(update(task).where(task.c.id == question.id).values(leased=task.c.leased + 1))
        return id_

    def _repeated_receipt(
        self, connection: Connection, person: Person, lease_id: str, submission: Submission, row: Any
    ) -> Receipt:
        if row.annotator != person.id:
            raise QueueError(Problem.NOT_YOURS, "this key belongs to another person's answer")
        question = connection.execute(select(task.c.kind, task.c.low, task.c.high).where(task.c.id == row.task)).one()
        values = _stored_values(question, submission, row.swap)
        if (row.lease, row.kind, row.given) != (lease_id, submission.kind, values):
            raise QueueError(Problem.KEY_REUSED, "this key was used for another answer; make a new key for a new one")
        return self._receipt(connection, row, repeated=True)

    def _outcome(self, round_state: str, question: Any, submission: Submission, held_back: bool) -> Outcome:
        if submission.kind != "label":
            return Outcome.REFUSED
        if question.gold is not None:
            return Outcome.COUNTED
        # What a limit or the dual step reads counts only for its own round; a preference of a pair stays useful.
        closed = round_state != "open" and question.kind != "pair"
        return (
            Outcome.SURPLUS
            if held_back or closed or question.seats + question.leased >= question.needed
            else Outcome.COUNTED
        )

    def _answers(self) -> Any:
        return (
            select(answer)
            .join(task, task.c.id == answer.c.task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(question_round.c.run == self._store.run)
        )

    def _lock(self, connection: Connection, person: Person, lease_id: str) -> tuple[str, Any, Any]:
        """State of the round, the lease and the question; locks are taken in the same order everywhere."""
        state = connection.execute(
            select(question_round.c.state)
            .join(task, task.c.question_round == question_round.c.id)
            .join(lease, lease.c.task == task.c.id)
            .where(lease.c.id == lease_id, question_round.c.run == self._store.run)
            .with_for_update(read=True, of=question_round)
        ).scalar()
        if state is None:
            raise QueueError(Problem.NOT_FOUND, f"there is no question {lease_id!r} in your hands")
        lease_row = demand_mine(connection, person, lease_id)
        question = connection.execute(select(task).where(task.c.id == lease_row.task).with_for_update()).one()
        return str(state), lease_row, question

    def _last_answer(self, connection: Connection, lease_id: str) -> Any:
        """The newest answer of a lease that was not taken back."""
        taken_back = exists().where(withdrawal.c.answer == answer.c.seq)
        query = select(answer).where(answer.c.lease == lease_id, ~taken_back).order_by(answer.c.seq.desc())
        return connection.execute(query.limit(1)).first()

    def _receipt(self, connection: Connection, row: Any, *, repeated: bool) -> Receipt:
        query = (
            select(question_round.c.round, question_round.c.purpose, task.c.provenance)
            .select_from(task.join(question_round, question_round.c.id == task.c.question_round))
            .where(task.c.id == row.task)
        )
        origin = connection.execute(query).one()
        seated = connection.execute(select(seat.c.number).where(seat.c.answer == row.seq)).first() is not None
        withdrawn = connection.execute(select(withdrawal.c.answer).where(withdrawal.c.answer == row.seq)).first()
        gold = origin.purpose.startswith(GOLD)
        outcome = Outcome.COUNTED if seated or (gold and row.kind == "label") else Outcome(row.outcome)
        versions = tuple(
            origin.provenance[name] for name in ("policy_version", "second_policy_version") if name in origin.provenance
        )
        return Receipt(
            key=row.key,
            lease=row.lease,
            kind=row.kind,
            outcome=outcome,
            repeated=repeated,
            late=row.late,
            withdrawn=withdrawn is not None,
            round=origin.round if seated else None,
            policy_versions=versions,
            message=_message(outcome, row.late, withdrawn is not None),
        )


def _message(outcome: Outcome, late: bool, withdrawn: bool) -> str:
    if withdrawn:
        return "Taken back."
    if outcome is Outcome.SURPLUS:
        return "Thank you. Others were faster on this one: your answer is kept, but does not count in this round."
    if outcome is Outcome.REFUSED:
        return "Noted. Somebody else will be asked."
    return "Stored, a little late but in time to count." if late else "Stored."


def _stored_values(question: Any, submission: Submission, swap: bool) -> Given:
    """What is stored of a label to this question; nothing of another reply."""
    if submission.kind != "label":
        return {}
    bounds = None if question.low is None else (question.low, question.high)
    return stored_form(question.kind, submission.given, swap, bounds)


def _demand_form(submission: Submission) -> None:
    if submission.kind not in REPLIES:
        raise QueueError(Problem.MALFORMED, f"kind must be one of {', '.join(REPLIES)}, not {submission.kind!r}")
    if submission.reason not in (REASONS if submission.kind == "flag" else ("", *REASONS)):
        raise QueueError(Problem.MALFORMED, f"the reason of a {submission.kind} is one of: {', '.join(REASONS)}")
    if submission.kind != "label" and submission.given:
        raise QueueError(Problem.MALFORMED, f"a {submission.kind} has no labels in it")
    if len(submission.note) > NOTE_MAX:
        raise QueueError(Problem.MALFORMED, f"a note has at most {NOTE_MAX} characters")
