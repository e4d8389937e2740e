"""Batches of questions: opened once per (run, round, purpose), watched, frozen into a snapshot that never changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from pddpo_ray.annotation.queue.answer_forms import demand_gold, round_digest
from pddpo_ray.annotation.queue.batch_rows import (
    DROPPED,
    CountedAnswer,
    RoundStatus,
    Snapshot,
    adjudicated_query,
    counted_query,
    round_id,
    snapshot_of,
    status_query,
    task_row,
)
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError, Rules
from pddpo_ray.journal.annotation_schema import (
    annotator,
    answer,
    audit_event,
    lease,
    question_round,
    seat,
    snapshot,
    task,
)
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.rows import record_of
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Question

GOLD = "gold"
"""Purpose of the batch of control questions; it belongs to round 0 and is never frozen."""
UNLIMITED = 1_000_000
"""Labels that a control question takes: any person may get it."""
CHUNK = 500


class Rounds:
    """Opens, watches and freezes the batches of one run."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rules = rules

    def open(
        self,
        round_: int,
        purpose: str,
        questions: Sequence[Question],
        *,
        labels_each: int,
        labels_of: Mapping[str, int] | None = None,
        deadline_ms: int | None = None,
        waits_s: float | None = None,
        priority: int = 0,
        by: str = "driver",
    ) -> RoundStatus:
        """Opens the batch of this round and purpose. Opening it again with the same questions changes nothing, except
        that another `waits_s` than before sets the deadline to that long from now. `labels_of` names items that want
        another number of labels than `labels_each`.

        Raises QueueError: conflict if the batch exists with other questions, backlog if people are too far behind.
        """
        if not questions:
            raise QueueError(Problem.MALFORMED, f"round {round_}, {purpose}: a batch needs at least one question")
        if purpose.startswith(GOLD):
            raise QueueError(Problem.MALFORMED, f"purpose {purpose!r}: names that begin with {GOLD!r} are taken")
        kinds = {question.kind for question in questions}
        if len(kinds) != 1:
            raise QueueError(Problem.MALFORMED, f"round {round_}, {purpose}: one batch has one kind of question")
        digest, label_counts = round_digest(questions), labels_of or {}
        id_ = round_id(self._store.run, round_, purpose)
        row: dict[str, Any] = {"id": id_, "run": self._store.run, "round": round_, "purpose": purpose}
        row |= {"kind": questions[0].kind, "labels_each": labels_each, "priority": priority, "deadline_ms": deadline_ms}
        row |= {"opened_ms": self._store.clock(), "state": "open", "content_sha256": digest, "waits_s": waits_s}

        def add(connection: Connection) -> str:
            batch = self._find_batch(connection, round_, purpose)
            if batch is not None:
                _demand_same(batch, digest, labels_each)
                self._wait_as_long(connection, batch, waits_s, by)
                return str(batch.id)
            self._demand_room(connection, purpose)
            connection.execute(insert(question_round).values(**row))
            rows = [
                task_row(id_, position, question, label_counts.get(question.item, labels_each))
                for position, question in enumerate(questions)
            ]
            for start in range(0, len(rows), CHUNK):
                connection.execute(insert(task), rows[start : start + CHUNK])
            record_event(connection, row["opened_ms"], by, "round.open", id_, questions=len(rows), sha256=digest)
            return id_

        return self.status(self._store.write(add))

    def add_gold(self, questions: Sequence[Question], *, by: str) -> int:
        """Adds control questions to the run's stock, unless their item is there already. Returns how many it added."""
        for question in questions:
            demand_gold(question)

        def add(connection: Connection) -> int:
            added = 0
            for question in questions:
                stock = self._gold_stock(connection, question.kind)
                result = connection.execute(
                    select(task.c.id).where(task.c.question_round == stock, task.c.item == question.item)
                )
                if result.first() is None:
                    last = select(func.max(task.c.position)).where(task.c.question_round == stock)
                    position = (
                        int(connection.execute(select(func.coalesce(last.scalar_subquery(), -1))).scalar_one()) + 1
                    )
                    connection.execute(insert(task).values(**task_row(stock, position, question, UNLIMITED)))
                    added += 1
            record_event(connection, self._store.clock(), by, "gold.add", self._store.run, added=added)
            return added

        return self._store.write(add)

    def backlog(self) -> int:
        """Labels that are still wanted in open batches."""
        with reading(self._store.engine) as connection:
            return self._backlog(connection)

    def progress(self) -> dict[str, int]:
        """Labels that the run's open batches have and want."""
        open_here = (question_round.c.run == self._store.run) & (question_round.c.state == "open")
        tables = task.join(question_round, question_round.c.id == task.c.question_round)
        sums = [func.coalesce(func.sum(column), 0) for column in (task.c.seats, task.c.needed)]
        query = select(*sums).select_from(tables).where(open_here, task.c.gold.is_(None), task.c.state != DROPPED)
        with reading(self._store.engine) as connection:
            labels, needed = connection.execute(query).one()
        return {"labels": int(labels), "wanted": int(needed)}

    def all(self) -> list[RoundStatus]:
        """Every batch of the run but control questions, the newest first."""
        of_run = (question_round.c.run == self._store.run) & ~question_round.c.purpose.startswith(GOLD)
        query = status_query().where(of_run).order_by(question_round.c.opened_ms.desc(), question_round.c.id)
        with reading(self._store.engine) as connection:
            return [record_of(RoundStatus, row) for row in connection.execute(query)]

    def status(self, id_: str) -> RoundStatus:
        with reading(self._store.engine) as connection:
            return self._status(connection, id_)

    def extend(self, id_: str, deadline_ms: int | None, *, by: str, reason: str = "") -> RoundStatus:
        """Moves the deadline; None removes it."""

        def apply(connection: Connection) -> None:
            self._lock(connection, id_, "open")
            statement = update(question_round).where(question_round.c.id == id_).values(deadline_ms=deadline_ms)
            connection.execute(statement)
            self._record(connection, by, "round.extend", id_, reason, deadline_ms=deadline_ms)

        self._store.write(apply)
        return self.status(id_)

    def reopen_blocked(self, id_: str, *, by: str, reason: str = "") -> int:
        """Puts questions that too many people refused back into the queue. Returns how many."""
        return self._change_blocked_questions(id_, "round.unblock", by, reason, state="open", refusals=0)

    def drop_blocked(self, id_: str, *, by: str, reason: str = "") -> int:
        """Drops questions that too many people refused; the batch does without their labels. Returns how many."""
        return self._change_blocked_questions(id_, "round.drop", by, reason, state=DROPPED)

    def _change_blocked_questions(self, id_: str, action: str, by: str, reason: str, **values: Any) -> int:
        def apply(connection: Connection) -> int:
            self._lock(connection, id_, "open")
            blocked = (task.c.question_round == id_) & (task.c.state == "blocked")
            count = connection.execute(update(task).where(blocked).values(**values)).rowcount
            self._record(connection, by, action, id_, reason, questions=count)
            return count

        return self._store.write(apply)

    def cancel(self, id_: str, *, by: str, reason: str = "") -> None:
        """Stops asking the questions of a batch; the answers that were given stay stored."""

        def apply(connection: Connection) -> None:
            self._lock(connection, id_, "open")
            self._end(connection, id_, "cancelled")
            self._record(connection, by, "round.cancel", id_, reason)

        self._store.write(apply)

    def reopen(self, id_: str, *, by: str, reason: str = "") -> RoundStatus:
        """Asks the questions of a cancelled batch again; the answers that it had count as before."""

        def apply(connection: Connection) -> None:
            self._lock(connection, id_, "cancelled")
            connection.execute(update(question_round).where(question_round.c.id == id_).values(state="open"))
            self._record(connection, by, "round.reopen", id_, reason)

        self._store.write(apply)
        return self.status(id_)

    def last_decision(self, id_: str, action: str) -> tuple[str, str] | None:
        """Who took this action about the batch last, by handle where they have one, and why."""
        query = select(audit_event.c.actor, audit_event.c.data).where(
            audit_event.c.object == id_, audit_event.c.action == action
        )
        with reading(self._store.engine) as connection:
            row = connection.execute(query.order_by(audit_event.c.seq.desc()).limit(1)).first()
            if row is None:
                return None
            handle = connection.execute(select(annotator.c.handle).where(annotator.c.id == row.actor)).scalar()
        return handle or row.actor, row.data.get("reason", "")

    def freeze(self, id_: str, *, accept_missing: bool = False, by: str = "driver", reason: str = "") -> Snapshot:
        """Closes the batch and fixes what counts. Freezing a frozen one reads the snapshot back.

        Raises QueueError (conflict) if labels are missing and `accept_missing` is not set.
        """

        def apply(connection: Connection) -> Snapshot:
            stored = connection.execute(select(snapshot).where(snapshot.c.question_round == id_)).first()
            if stored is not None:
                return snapshot_of(id_, stored.content, stored.sha256)
            self._lock(connection, id_, "open")
            status = self._status(connection, id_)
            if not status.complete and not accept_missing:
                raise QueueError(
                    Problem.CONFLICT,
                    f"round {status.round}, {status.purpose}: {status.missing} of {status.wanted} labels are missing",
                )
            self._end(connection, id_, "frozen")
            content = [list(row) for row in connection.execute(counted_query(id_))]
            content += [list(row) for row in connection.execute(adjudicated_query(id_))]
            digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
            row = {"question_round": id_, "content": content, "sha256": digest, "at_ms": self._store.clock()}
            connection.execute(insert(snapshot).values(**row))
            counts = {"labels": status.counted, "missing": status.missing}
            self._record(connection, by, "round.freeze", id_, reason, sha256=digest, **counts)
            return snapshot_of(id_, content, digest)

        return self._store.write(apply)

    def snapshot(self, id_: str) -> Snapshot | None:
        """What the frozen batch decided; None while it is open."""
        with reading(self._store.engine) as connection:
            stored = connection.execute(select(snapshot).where(snapshot.c.question_round == id_)).first()
        return None if stored is None else snapshot_of(id_, stored.content, stored.sha256)

    def counted(self, id_: str) -> list[CountedAnswer]:
        """Labels that count at this moment, frozen or not."""
        with reading(self._store.engine) as connection:
            return [CountedAnswer(*row) for row in connection.execute(counted_query(id_))]

    def votes(self, status: RoundStatus) -> tuple[list[int], list[int]]:
        """Of a safety batch, by position of the question: labels that say unsafe, and all that count."""
        unsafe, labelled = [0] * status.questions, [0] * status.questions
        for entry in self.counted(status.id):
            labelled[entry.position] += 1
            unsafe[entry.position] += entry.given["safety"] == "unsafe"
        return unsafe, labelled

    def last_label_ms(self, id_: str) -> int:
        """When the newest label that counts was given; the opening if there is none."""
        query = (
            select(func.max(answer.c.at_ms))
            .select_from(seat.join(task, task.c.id == seat.c.task).join(answer, answer.c.seq == seat.c.answer))
            .where(task.c.question_round == id_)
        )
        with reading(self._store.engine) as connection:
            return int(connection.execute(query).scalar() or self._status(connection, id_).opened_ms)

    # --- inside a transaction -------------------------------------------------------------------------------------

    def _backlog(self, connection: Connection) -> int:
        query = (
            select(func.coalesce(func.sum(task.c.needed - task.c.seats), 0))
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(question_round.c.run == self._store.run, question_round.c.state == "open")
            .where(task.c.gold.is_(None), task.c.state != DROPPED)
        )
        return int(connection.execute(query).scalar_one())

    def _demand_room(self, connection: Connection, purpose: str) -> None:
        waiting = self._backlog(connection)
        if waiting > self._rules.backlog_max:
            raise QueueError(
                Problem.BACKLOG,
                f"{waiting} labels are still wanted, more than {self._rules.backlog_max}: {purpose} waits for them",
            )

    def _gold_stock(self, connection: Connection, kind: str) -> str:
        purpose = f"{GOLD}-{kind}"
        stock = self._find_batch(connection, 0, purpose)
        if stock is not None:
            return str(stock.id)
        id_ = round_id(self._store.run, 0, purpose)
        row = {"id": id_, "run": self._store.run, "round": 0, "purpose": purpose, "kind": kind}
        row |= {"labels_each": UNLIMITED, "priority": 0, "opened_ms": self._store.clock(), "deadline_ms": None}
        connection.execute(insert(question_round).values(**row, state="open", content_sha256=""))
        return id_

    def _find_batch(self, connection: Connection, round_: int, purpose: str) -> Any:
        """The batch of this round and purpose, if there is one. A parent run may have opened it under its own id."""
        of_round = (question_round.c.run == self._store.run) & (question_round.c.round == round_)
        return connection.execute(select(question_round).where(of_round, question_round.c.purpose == purpose)).first()

    def _status(self, connection: Connection, id_: str) -> RoundStatus:
        own_batch = (question_round.c.id == id_) & (question_round.c.run == self._store.run)
        row = connection.execute(status_query().where(own_batch)).first()
        if row is None:
            raise QueueError(Problem.NOT_FOUND, f"there is no batch {id_!r} in this run")
        return record_of(RoundStatus, row)

    def _wait_as_long(self, connection: Connection, batch: Any, waits_s: float | None, by: str) -> None:
        """Moves the deadline to `waits_s` from now if the run waits another time than before."""
        old_waits_s = batch.waits_s
        if old_waits_s is None and batch.deadline_ms is not None:
            old_waits_s = (batch.deadline_ms - batch.opened_ms) / 1000  # a batch of an earlier version
        if waits_s is None or waits_s == old_waits_s or batch.state != "open":
            return
        values = {"waits_s": waits_s, "deadline_ms": self._store.clock() + int(waits_s * 1000)}
        connection.execute(update(question_round).where(question_round.c.id == batch.id).values(**values))
        self._record(connection, by, "round.extend", batch.id, "resumed with another people.deadline_s", **values)

    def _record(self, connection: Connection, by: str, action: str, id_: str, reason: str, **data: Any) -> None:
        """Writes to the audit log, with the reason if any."""
        if reason:
            data |= {"reason": reason}
        record_event(connection, self._store.clock(), by, action, id_, **data)

    def _lock(self, connection: Connection, id_: str, expected: str) -> None:
        """Locks the batch for the transaction. Raises QueueError if it is in another state than `expected`."""
        query = select(question_round.c.state).where(
            question_round.c.id == id_, question_round.c.run == self._store.run
        )
        state = connection.execute(query.with_for_update()).scalar()
        if state is None:
            raise QueueError(Problem.NOT_FOUND, f"there is no batch {id_!r} in this run")
        if state != expected:
            raise QueueError(Problem.ROUND_CLOSED, f"the batch is {state}, not {expected}")

    def _end(self, connection: Connection, id_: str, state: str) -> None:
        """Ends all leases and closes the batch."""
        questions = select(task.c.id).where(task.c.question_round == id_)
        in_hands = (lease.c.state == "leased") & lease.c.task.in_(questions)
        connection.execute(update(lease).where(in_hands).values(state="expired"))
        connection.execute(update(task).where(task.c.question_round == id_).values(leased=0))
        connection.execute(update(question_round).where(question_round.c.id == id_).values(state=state))


def _demand_same(batch: Any, digest: str, labels_each: int) -> None:
    if (batch.content_sha256, batch.labels_each) != (digest, labels_each):
        raise QueueError(
            Problem.CONFLICT,
            f"round {batch.round}, {batch.purpose} was opened with other questions: the run and its queue do not agree",
        )
