"""What the database knows about one person: handed out on request, and erased on request.

    desk = PersonalData(store, rules)
    desk.of(person.id)                                          # all of it, as JSON
    desk.erase(person.id, by=admin.id, reason="asked on 3 May")

Labels are the work's result and stay, under the pseudonym that exports show for the account. What goes: the name (also
in the audit log), the token, sessions, invitations, languages, limits, and the comments that the person wrote.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, String, cast, delete, or_, select, update

from pddpo_ray.annotation.label_rows import PSEUDONYM
from pddpo_ray.annotation.people.accounts import demand_other_admin
from pddpo_ray.annotation.queue.assignment import Leases
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError, Rules
from pddpo_ray.annotation.queue.worklog import WorkLog
from pddpo_ray.annotation.review.audit_checks import ERASURE
from pddpo_ray.journal.annotation_schema import (
    ERASED,
    annotator,
    answer,
    audit_event,
    consent,
    invitation,
    login,
    question_round,
    task,
    withdrawal,
)
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import empty_write_ahead_log, overwrite_deleted, reading
from pddpo_ray.journal.tokens import hashed, new_token
from pddpo_ray.journal.transactions import Store

ACCOUNT = (
    "id", "handle", "role", "active", "sees_harmful", "daily_cap", "harmful_cap", "languages", "created_ms", "held",
    "hourly_rate",
)  # fmt: skip
SAID = ("at_ms", "kind", "given", "reason", "note", "ms_spent", "revealed", "outcome", "late")
ASKED = ("prompt", "first", "second", "asks")


@dataclass(frozen=True)
class Erased:
    """What an erasure did: the name that the account has now, answers that stay under it, comments and entries of the
    audit log that were emptied, and entries whose free text still holds the name (a reason that somebody wrote)."""

    name: str
    answers: int
    notes: int
    events: int
    mentions: list[int]


class PersonalData:
    """The data about the people of one database."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._leases, self._worklog = Leases(store, rules), WorkLog(store, idle_s=rules.idle_s)

    def find(self, handle: str) -> str:
        """The account's id. Raises QueueError (not_found)."""
        with reading(self._store.engine) as connection:
            id_ = connection.execute(select(annotator.c.id).where(annotator.c.handle == handle)).scalar()
        if id_ is None:
            raise QueueError(Problem.NOT_FOUND, f"there is no person called {handle!r}")
        return str(id_)

    def of(self, id_: str) -> dict[str, Any]:
        """Everything that is stored about a person. Raises QueueError (not_found)."""
        with reading(self._store.engine) as connection:
            row = _demand(connection, id_)
            content = {
                "account": {name: getattr(row, name) for name in ACCOUNT} | {"pseudonym": id_[:PSEUDONYM]},
                "sessions": _rows(connection, login, login.c.annotator == id_, "expires_ms", "revoked_ms"),
                "consents": _rows(connection, consent, consent.c.annotator == id_, "version", "text", "at_ms"),
                "answers": _answers(connection, id_),
                "audit": _rows(
                    connection, audit_event, _audit_condition(row), "seq", "at_ms", "actor", "action", "object", "data"
                ),
            }
        return content | {"work": [asdict(day) for day in self._worklog.days() if day.handle == row.handle]}

    def erase(self, id_: str, *, by: str, reason: str) -> Erased:
        """Erases what names a person; their answers stay and still count.

        Raises QueueError: not_found; malformed without a reason; conflict for the last admin.
        """
        if not reason.strip():
            raise QueueError(Problem.MALFORMED, "say why: the reason is kept in the audit log, without the name")
        self._leases.release_all(id_)
        erasure = self._store.write(lambda connection: self._erase(connection, id_, by, reason))
        empty_write_ahead_log(self._store.engine)
        return erasure

    def _erase(self, connection: Connection, id_: str, by: str, reason: str) -> Erased:
        row = _demand(connection, id_)
        demand_other_admin(connection, row)
        overwrite_deleted(connection)
        by_handle = (audit_event.c.object == row.handle) | (audit_event.c.data["handle"].as_string() == row.handle)
        events = list(connection.execute(select(audit_event.c.seq).where(by_handle)).scalars())
        connection.execute(update(audit_event).where(audit_event.c.seq.in_(events)).values(object="", data=ERASED))
        with_note = (answer.c.annotator == id_) & (answer.c.note != "")
        notes = connection.execute(update(answer).where(with_note).values(note="")).rowcount
        connection.execute(delete(login).where(login.c.annotator == id_))
        connection.execute(delete(invitation).where(invitation.c.handle == row.handle))
        name = f"erased {id_[:PSEUDONYM]}"
        values: dict[str, Any] = {"handle": name, "token_sha256": hashed(new_token()), "token_prefix": ""}
        values |= {"active": False, "sees_harmful": True, "daily_cap": 0, "harmful_cap": 0, "languages": ""}
        connection.execute(update(annotator).where(annotator.c.id == id_).values(**values))
        answers = len(connection.execute(select(answer.c.seq).where(answer.c.annotator == id_)).all())
        mentions = list(connection.execute(select(audit_event.c.seq).where(_mentions(row.handle))).scalars())
        record_event(connection, self._store.clock(), by, ERASURE, id_, reason=reason, notes=notes, events=events)
        return Erased(name, answers, notes, len(events), mentions)


def _demand(connection: Connection, id_: str) -> Any:
    row = connection.execute(select(annotator).where(annotator.c.id == id_)).first()
    if row is None:
        raise QueueError(Problem.NOT_FOUND, f"there is no person {id_!r}")
    return row


def _rows(connection: Connection, table: Any, where: ColumnElement[bool], *names: str) -> list[dict[str, Any]]:
    return [dict(row._mapping) for row in connection.execute(select(*(table.c[name] for name in names)).where(where))]


def _answers(connection: Connection, id_: str) -> list[dict[str, Any]]:
    """What the person said, to what, and whether it was taken back; nothing tells which were control questions."""
    query = (
        select(
            question_round.c.run, *(answer.c[name] for name in SAID), *(task.c[name] for name in ASKED),
            withdrawal.c.at_ms.label("withdrawn_ms"),
        )
        .join(task, task.c.id == answer.c.task)
        .join(question_round, question_round.c.id == task.c.question_round)
        .outerjoin(withdrawal, withdrawal.c.answer == answer.c.seq)
        .where(answer.c.annotator == id_)
        .order_by(answer.c.seq)
    )  # fmt: skip
    return [dict(row._mapping) for row in connection.execute(query)]


def _audit_condition(row: Any) -> ColumnElement[bool]:
    """Entries of the audit log by a person, about them or that mention their name."""
    return or_(audit_event.c.actor == row.id, audit_event.c.object.in_((row.id, row.handle)), _mentions(row.handle))


def _mentions(handle: str) -> ColumnElement[bool]:
    as_stored = json.dumps(handle)[1:-1]  # letters beyond ASCII are escaped in the column
    return cast(audit_event.c.data, String).contains(as_stored, autoescape=True)
