"""Keys of the served endpoint: random, shown once, stored as hashes, each with its scope and its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, insert, select, update

from pddpo_ray.errors import UserError
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.schema import api_key
from pddpo_ray.journal.tokens import SHOWN, hashed, new_token
from pddpo_ray.journal.transactions import Store

NAME = re.compile(r"[\w][\w .@-]{0,99}")


class Scope(StrEnum):
    """What a key is for; each scope may do what those above it may."""

    CHAT = "chat"
    """The released policy, and the mixture where it is certified."""
    INSPECT = "inspect"
    """Every single policy and the mixture, released or not, and which round wrote an answer."""
    ADMIN = "admin"
    """The routes of administration: release, roll back, read the history."""

    def covers(self, other: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True)
class ApiKey:
    """A key without its secret."""

    name: str
    scope: Scope
    requests_per_minute: float
    tokens_per_minute: float
    """Prompt and answer together."""
    prefix: str = ""
    """Its first characters, to recognise it by."""


class ApiKeys:
    """Keys of one run's endpoint."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self, name: str, scope: Scope, *, requests_per_minute: float = 600.0, tokens_per_minute: float = 200_000.0
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which is shown this once. Raises UserError if the name is taken."""
        if not NAME.fullmatch(name):
            raise UserError(f"key name {name!r}: use letters, digits, space, . @ _ -, at most 100 characters")
        if requests_per_minute <= 0 or tokens_per_minute <= 0:
            raise UserError(f"key {name!r}: limits must be above 0; revoke a key to shut it out")
        secret = new_token()
        row: dict[str, Any] = {"run": self._store.run, "name": name, "scope": scope.value}
        row |= {"key_sha256": hashed(secret), "key_prefix": secret[:SHOWN], "created_ms": self._store.clock()}
        row |= {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}

        def add(connection: Connection) -> None:
            if connection.execute(select(api_key.c.name).where(self._named(name))).first():
                raise UserError(f"there is a key called {name!r} already, revoked or not: choose another name")
            connection.execute(insert(api_key).values(**row))
            record_event(connection, self._store.clock(), "serving", "key.create", name, scope=scope.value)

        self._store.write(add)
        return ApiKey(name, scope, requests_per_minute, tokens_per_minute, secret[:SHOWN]), secret

    def revoke(self, name: str) -> None:
        """Ends a key; a running endpoint notices within its polling interval. Raises UserError if there is none."""

        def apply(connection: Connection) -> None:
            valid = self._named(name) & api_key.c.revoked_ms.is_(None)
            changed = connection.execute(update(api_key).where(valid).values(revoked_ms=self._store.clock()))
            if changed.rowcount == 0:
                raise UserError(f"there is no valid key called {name!r}")
            record_event(connection, self._store.clock(), "serving", "key.revoke", name)

        self._store.write(apply)

    def valid(self) -> Mapping[str, ApiKey]:
        """{hash of the secret: key}; looking a hash up tells an attacker nothing by its time."""
        query = select(api_key).where((api_key.c.run == self._store.run) & api_key.c.revoked_ms.is_(None))
        with reading(self._store.engine) as connection:
            rows = connection.execute(query.order_by(api_key.c.name)).all()
        return {
            row.key_sha256: ApiKey(
                row.name, Scope(row.scope), row.requests_per_minute, row.tokens_per_minute, row.key_prefix
            )
            for row in rows
        }

    def _named(self, name: str) -> Any:
        return (api_key.c.run == self._store.run) & (api_key.c.name == name)
