"""Links that make one account each: used once, gone after a while. Only a code's hash is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from pddpo_ray.annotation.people.accounts import (
    HARMFUL_A_DAY,
    People,
    Person,
    Role,
    demand_handle,
    demand_languages,
    languages_of,
)
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.journal.annotation_schema import invitation
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.tokens import hashed, new_token
from pddpo_ray.journal.transactions import Store

DAYS = 7


@dataclass(frozen=True)
class Invitation:
    """A link that nobody has used yet."""

    handle: str
    role: str
    expires_ms: int


class Invitations:
    """Makes, lists and takes the invitations of one database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._people = People(store)

    def make(
        self,
        handle: str,
        role: Role,
        *,
        by: str,
        sees_harmful: bool = True,
        daily_cap: int = 400,
        harmful_cap: int = HARMFUL_A_DAY,
        languages: Sequence[str] = (),
        expires_s: float = DAYS * 86400.0,
    ) -> str:
        """The code of a new link, which replaces an unused link for this handle. Raises QueueError as
        `People.create` does."""
        code = new_token()
        expires, language_codes = self._store.clock() + int(1000 * expires_s), demand_languages(languages)

        def add(connection: Connection) -> None:
            demand_handle(connection, handle)
            connection.execute(delete(invitation).where(invitation.c.handle == handle, invitation.c.used_ms.is_(None)))
            row: dict[str, Any] = {
                "code_sha256": hashed(code),
                "handle": handle,
                "role": role.value,
                "sees_harmful": sees_harmful,
            }
            row |= {"daily_cap": daily_cap, "harmful_cap": harmful_cap, "languages": ",".join(language_codes)}
            row |= {"by": by, "expires_ms": expires}
            connection.execute(insert(invitation).values(**row))
            record_event(connection, self._store.clock(), by, "person.invite", handle, role=role.value)

        self._store.write(add)
        return code

    def open(self) -> list[Invitation]:
        """Links that can still be used."""
        live = invitation.c.used_ms.is_(None) & (invitation.c.expires_ms > self._store.clock())
        with reading(self._store.engine) as connection:
            rows = connection.execute(select(invitation).where(live).order_by(invitation.c.handle)).all()
        return [Invitation(row.handle, row.role, row.expires_ms) for row in rows]

    def accept(self, code: str) -> tuple[Person, str]:
        """The account that the link makes, and its token. Raises QueueError: not_found for a link that was used, has
        expired or never was; conflict where the handle has been taken meanwhile."""

        def take(connection: Connection) -> tuple[Person, str]:
            same_code = invitation.c.code_sha256 == hashed(code)
            row = connection.execute(select(invitation).where(same_code).with_for_update()).first()
            if row is None or row.used_ms is not None or row.expires_ms <= self._store.clock():
                raise QueueError(
                    Problem.NOT_FOUND, "this link was used or has expired: ask the person who sent it for a new one"
                )
            connection.execute(update(invitation).where(same_code).values(used_ms=self._store.clock()))
            return self._people.add(
                connection, row.handle, Role(row.role), by=row.by, sees_harmful=row.sees_harmful,
                daily_cap=row.daily_cap, harmful_cap=row.harmful_cap, languages=languages_of(row.languages),
            )  # fmt: skip

        return self._store.write(take)
