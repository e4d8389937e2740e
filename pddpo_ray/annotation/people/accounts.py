"""Who may answer: people, tokens, sessions. Tokens are random and only their hashes are stored."""

from __future__ import annotations

import re
import secrets
import unicodedata
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from pddpo_ray.annotation.queue.answer_forms import LANGUAGE
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.journal.annotation_schema import annotator, answer, campaign, guideline, login, question_round, task
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.tokens import SHOWN, hashed, new_token
from pddpo_ray.journal.transactions import Store

HANDLE = re.compile(r"[\w][\w .@-]{0,99}")
SESSION_S = 12 * 3600
HARMFUL_A_DAY = 150

DEFAULT_GUIDELINES = """\
## What to look for

**More helpful** - which answer serves the person who asked better? Judge usefulness alone, even of a harmful answer.

**More harmful** - which answer could do more damage if somebody followed it? Judge harm alone, even of a dull answer.

**Safe or unsafe** - would you be at ease if this answer reached someone in a difficult moment? If not, it is unsafe.

Use *tie* only when you truly cannot see a difference, *can't tell* when you lack the knowledge to judge, and *skip*
whenever a text is more than you want to read. Skipping costs you nothing.
"""


ALIKE = str.maketrans(
    "\u0430\u0432\u0435\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u0456\u0458\u0455\u0501\u04bb"
    "\u03b1\u03b2\u03b5\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u03b7\u03b6\u03bc" "01",
    "abekmhopctyxijsdh" "abeikvoptuxnzm" "ol",
)  # fmt: skip
"""Cyrillic and Greek letters, and digits, that look like Latin letters."""


def look_alike(handle: str, other: str) -> bool:
    """Whether two handles differ only in capitals, spaces, marks or look-alike letters of other scripts."""
    return bool(_shapes(handle) & _shapes(other))


def _shapes(handle: str) -> set[str]:
    parts = unicodedata.normalize("NFKD", handle)
    base = " ".join(re.split(r"[\s._@-]+", "".join(c for c in parts if not unicodedata.combining(c)))).strip()
    return {text.casefold().translate(ALIKE) for text in (base, base.replace("I", "l"))}


class Role(StrEnum):
    ANNOTATOR = "annotator"
    LEAD = "lead"
    ADMIN = "admin"
    SERVICE = "service"


@dataclass(frozen=True)
class Person:
    """Someone who is signed in. `csrf` is set if they signed in with the cookie of a browser session."""

    id: str
    handle: str
    role: Role
    sees_harmful: bool
    daily_cap: int
    active: bool = True
    csrf: str | None = None
    harmful_cap: int = HARMFUL_A_DAY
    """The most answers a day that a person may call unsafe; after them the person gets mild questions only."""
    languages: tuple[str, ...] = ()
    """Codes of the languages in which they are asked; none: in every language."""
    hourly_rate: float | None = None
    """Pay per hour; None: the default rate given when the work is saved."""


@dataclass(frozen=True)
class GuidelineVersion:
    """One version of the guidelines: its author (a handle where they have one), its date, and how many answers saw it.
    Version 0 ships with the package and has no author."""

    version: int
    by: str | None
    at_ms: int | None
    answers: int


class People:
    """Accounts and sessions of one database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self,
        handle: str,
        role: Role,
        *,
        by: str,
        sees_harmful: bool = True,
        daily_cap: int = 400,
        harmful_cap: int = HARMFUL_A_DAY,
        languages: Sequence[str] = (),
    ) -> tuple[Person, str]:
        """A new person and their token, which is shown this once. Raises QueueError if the handle is taken, or looks
        like another's."""
        caps: dict[str, Any] = {"sees_harmful": sees_harmful, "daily_cap": daily_cap, "harmful_cap": harmful_cap}
        caps |= {"languages": demand_languages(languages)}
        return self._store.write(lambda connection: self.add(connection, handle, role, by=by, **caps))

    def add(self, connection: Connection, handle: str, role: Role, *, by: str, **caps: Any) -> tuple[Person, str]:
        """As `create`, in the caller's transaction."""
        demand_handle(connection, handle)
        token, person = new_token(), Person(uuid.uuid4().hex, handle, role, **caps)
        self._insert(connection, person, token, by)
        return person, token

    def enlist_elsewhere(self, handle: str, *, by: str) -> Person:
        """An account for somebody who answers in another tool: nobody can sign in with it."""
        person = Person(uuid.uuid4().hex, handle, Role.ANNOTATOR, sees_harmful=True, daily_cap=0, active=False)
        self._store.write(lambda connection: self._insert(connection, person, new_token(), by))
        return person

    def rotate(self, id_: str, *, by: str, token: str | None = None) -> str:
        """A new token, or the given one; the old one and every session made with it end at once."""
        token = token or new_token()

        def replace(connection: Connection) -> None:
            self._demand(connection, id_)
            connection.execute(update(annotator).where(annotator.c.id == id_).values(**_token_columns(token)))
            self._end_sessions(connection, id_)
            record_event(connection, self._store.clock(), by, "person.rotate", id_)

        self._store.write(replace)
        return token

    def change(self, id_: str, *, by: str, **values: Any) -> Person:
        """Changes `active`, `role`, `sees_harmful`, `daily_cap`, `harmful_cap`, `languages` or `hourly_rate`; who is
        inactive is signed out. Raises QueueError: not_found; conflict where nobody would be left to make accounts."""
        if "languages" in values:
            values["languages"] = ",".join(demand_languages(values["languages"]))

        def apply(connection: Connection) -> Person:
            person = self._demand(connection, id_)
            if person.active and (values.get("active") is False or values.get("role", Role.ADMIN) != Role.ADMIN):
                demand_other_admin(connection, person)
            if values:
                connection.execute(update(annotator).where(annotator.c.id == id_).values(**values))
            if values.get("active") is False:
                self._end_sessions(connection, id_)
            record_event(connection, self._store.clock(), by, "person.change", id_, **values)
            return self._demand(connection, id_)

        return self._store.write(apply)

    def all(self) -> list[Person]:
        with reading(self._store.engine) as connection:
            return [_person(row) for row in connection.execute(select(annotator).order_by(annotator.c.handle))]

    def by_token(self, token: str) -> Person | None:
        """The active person with this token."""
        with reading(self._store.engine) as connection:
            row = connection.execute(select(annotator).where(annotator.c.token_sha256 == hashed(token))).first()
        return _person(row) if row is not None and row.active else None

    def sign_in(self, token: str) -> tuple[str, Person] | None:
        """Opens a browser session: the cookie's value and the person with their CSRF token."""
        person = self.by_token(token)
        return None if person is None else self.open_session(person)

    def open_session(self, person: Person) -> tuple[str, Person]:
        """As `sign_in`, for a known person."""
        cookie, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        row: dict[str, Any] = {"id_sha256": hashed(cookie), "annotator": person.id, "csrf": csrf}
        row |= {"expires_ms": self._store.clock() + SESSION_S * 1000}
        self._store.write(lambda connection: connection.execute(insert(login).values(**row)))
        return cookie, Person(**{**person.__dict__, "csrf": csrf})

    def by_cookie(self, cookie: str) -> Person | None:
        query = (
            select(annotator, login.c.csrf)
            .join(login, login.c.annotator == annotator.c.id)
            .where(
                login.c.id_sha256 == hashed(cookie),
                login.c.revoked_ms.is_(None),
                login.c.expires_ms > self._store.clock(),
                annotator.c.active,
            )
        )
        with reading(self._store.engine) as connection:
            row = connection.execute(query).first()
        return None if row is None else _person(row, row.csrf)

    def sign_out(self, cookie: str) -> None:
        statement = update(login).where(login.c.id_sha256 == hashed(cookie)).values(revoked_ms=self._store.clock())
        self._store.write(lambda connection: connection.execute(statement))

    def has_session(self, id_: str) -> bool:
        """Whether the person is signed in anywhere."""
        live = login.c.revoked_ms.is_(None) & (login.c.expires_ms > self._store.clock())
        query = select(login.c.annotator).where(login.c.annotator == id_, live)
        with reading(self._store.engine) as connection:
            return connection.execute(query).first() is not None

    def _insert(self, connection: Connection, person: Person, token: str, by: str) -> None:
        _demand_free(connection, person.handle)
        row: dict[str, Any] = {"id": person.id, "handle": person.handle, "role": person.role.value}
        row |= {"active": person.active, "sees_harmful": person.sees_harmful, "daily_cap": person.daily_cap}
        row |= {"harmful_cap": person.harmful_cap, "languages": ",".join(person.languages)}
        row |= {"created_ms": self._store.clock()} | _token_columns(token)
        connection.execute(insert(annotator).values(**row))
        names = {"handle": person.handle, "role": person.role.value}
        record_event(connection, self._store.clock(), by, "person.create", person.id, **names)

    def _end_sessions(self, connection: Connection, id_: str) -> None:
        open_ = (login.c.annotator == id_) & login.c.revoked_ms.is_(None)
        connection.execute(update(login).where(open_).values(revoked_ms=self._store.clock()))

    def _demand(self, connection: Connection, id_: str) -> Person:
        row = connection.execute(select(annotator).where(annotator.c.id == id_)).first()
        if row is None:
            raise QueueError(Problem.NOT_FOUND, f"there is no person {id_!r}")
        return _person(row)


def languages_of(stored: str) -> tuple[str, ...]:
    return tuple(code for code in stored.split(",") if code)


def demand_languages(codes: Sequence[str]) -> tuple[str, ...]:
    """Codes of languages, each once. Raises QueueError (malformed)."""
    for code in codes:
        if not re.fullmatch(LANGUAGE, code):
            raise QueueError(Problem.MALFORMED, f"language {code!r}: use its code of two or three letters, e.g. de")
    return tuple(dict.fromkeys(codes))


def demand_handle(connection: Connection, handle: str) -> None:
    """Raises QueueError for a malformed handle, and (conflict) for one that is taken or looks like another's."""
    if not HANDLE.fullmatch(handle):
        raise QueueError(
            Problem.MALFORMED, f"handle {handle!r}: use letters, digits, space, . @ _ -, at most 100 characters"
        )
    _demand_free(connection, handle)
    for other in connection.execute(select(annotator.c.handle).where(annotator.c.active)).scalars():
        if look_alike(other, handle):
            raise QueueError(
                Problem.CONFLICT, f"{handle!r} looks like {other!r}, who is here already: choose another handle"
            )


def _demand_free(connection: Connection, handle: str) -> None:
    if connection.execute(select(annotator.c.id).where(annotator.c.handle == handle)).first():
        raise QueueError(Problem.CONFLICT, f"there is a {handle!r} already: choose another handle")


def demand_other_admin(connection: Connection, row: Any) -> None:
    """Raises QueueError (conflict) for an admin if no other one is active."""
    other_admins = (annotator.c.role == Role.ADMIN.value) & annotator.c.active & (annotator.c.id != row.id)
    if row.role == Role.ADMIN.value and connection.execute(select(annotator.c.id).where(other_admins)).first() is None:
        raise QueueError(Problem.CONFLICT, "this is the only admin: make another one first")


class Campaign:
    """What applies to all people of one run: guidelines, and whether work is paused."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def paused(self) -> bool:
        with reading(self._store.engine) as connection:
            query = select(campaign.c.paused).where(campaign.c.run == self._store.run)
            return bool(connection.execute(query).scalar())

    def pause(self, paused: bool, *, by: str) -> None:
        def set_(connection: Connection) -> None:
            of_run = campaign.c.run == self._store.run
            result = connection.execute(update(campaign).where(of_run).values(paused=paused))
            if result.rowcount == 0:
                connection.execute(insert(campaign).values(run=self._store.run, paused=paused))
            record_event(connection, self._store.clock(), by, "campaign.pause", self._store.run, paused=paused)

        self._store.write(set_)

    def guidelines(self, version: int | None = None) -> tuple[int, str]:
        """Version and Markdown text of the newest guidelines, or of the given version; version 0 are the ones that ship
        with the package. Raises QueueError (not_found)."""
        query = select(guideline.c.version, guideline.c.markdown).where(guideline.c.run == self._store.run)
        if version is not None:
            query = query.where(guideline.c.version == version)
        with reading(self._store.engine) as connection:
            row = connection.execute(query.order_by(guideline.c.version.desc()).limit(1)).first()
        if row is None and version:
            raise QueueError(Problem.NOT_FOUND, f"there is no version {version} of the guidelines")
        return (0, DEFAULT_GUIDELINES) if row is None else (row.version, row.markdown)

    def versions(self) -> list[GuidelineVersion]:
        """All versions, the newest first."""
        of_run = guideline.c.run == self._store.run
        query = (
            select(guideline.c.version, guideline.c.by, guideline.c.at_ms, annotator.c.handle)
            .outerjoin(annotator, annotator.c.id == guideline.c.by)
            .where(of_run)
            .order_by(guideline.c.version.desc())
        )
        count_query = (
            select(answer.c.guideline, func.count())
            .join(task, task.c.id == answer.c.task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(question_round.c.run == self._store.run)
            .group_by(answer.c.guideline)
        )
        with reading(self._store.engine) as connection:
            counts = {version: count for version, count in connection.execute(count_query)}
            rows = connection.execute(query).all()
        versions = [
            GuidelineVersion(row.version, row.handle or row.by, row.at_ms, counts.get(row.version, 0)) for row in rows
        ]
        return [*versions, GuidelineVersion(0, None, None, counts.get(0, 0))]

    def set_guidelines(self, markdown: str, *, by: str) -> int:
        """A new version; answers remember which one their author could read."""

        def add(connection: Connection) -> int:
            newest = select(func.max(guideline.c.version)).where(guideline.c.run == self._store.run)
            version = (connection.execute(newest).scalar() or 0) + 1
            row = {"run": self._store.run, "version": version, "markdown": markdown, "by": by}
            connection.execute(insert(guideline).values(**row, at_ms=self._store.clock()))
            record_event(connection, self._store.clock(), by, "guidelines.set", self._store.run, version=version)
            return version

        return self._store.write(add)


def _token_columns(token: str) -> dict[str, str]:
    return {"token_sha256": hashed(token), "token_prefix": token[:SHOWN]}


def _person(row: Any, csrf: str | None = None) -> Person:
    return Person(
        row.id, row.handle, Role(row.role), row.sees_harmful, row.daily_cap, row.active, csrf, row.harmful_cap,
        languages_of(row.languages), row.hourly_rate,
    )  # fmt: skip
