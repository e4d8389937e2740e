"""Keys of the served endpoint: random, shown once, stored as hashes, each with its scope and its limits."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select, update

from pddpo_ray.errors import UserError
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.schema import api_key
from pddpo_ray.journal.tokens import SHOWN, hashed, new_token
from pddpo_ray.journal.transactions import Store
from pddpo_ray.storage.whole_files import write_secret

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


KEY_FILES = {Scope.INSPECT: "serve-key", Scope.ADMIN: "serve-admin-key"}
"""The first keys of a run: files in the run folder, readable by their owner alone."""
OWNERS_LIMITS: dict[str, Any] = {"requests_per_minute": 6000.0, "tokens_per_minute": 2_000_000.0}


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
    expires_ms: int | None = None
    """When it ends by itself, in milliseconds since the epoch; None: never."""
    consented: bool = False
    """Whether its holders agreed that training may learn from what they send."""


class ApiKeys:
    """Keys of one run's endpoint."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self,
        name: str,
        scope: Scope,
        *,
        requests_per_minute: float = 600.0,
        tokens_per_minute: float = 200_000.0,
        lasts_ms: int | None = None,
        consented: bool = False,
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which is shown this once; it ends after `lasts_ms`. Raises UserError if the name is
        taken."""
        row: dict[str, Any] = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
        row |= {"expires_ms": None if lasts_ms is None else self._store.clock() + lasts_ms, "consented": consented}
        secret, row = self._new(name, scope, row)
        self._store.write(lambda connection: self._add(connection, row))
        return _key(row), secret

    def first(self, run: Path) -> dict[str, Path]:
        """One key to use everything and one to administrate, made where there is none; the files that keep them.

        A file is written before its key is valid: a process killed between leaves no key that nobody has. Of several
        that start at once one makes them.
        """
        files = {scope.value: run / name for scope, name in KEY_FILES.items()}

        def add(connection: Connection) -> None:
            for scope in _missing_scopes(self._valid(connection)):
                secret, row = self._new(f"{scope}-{os.urandom(3).hex()}", scope, OWNERS_LIMITS)
                self._add(connection, row)
                write_secret(files[scope.value], secret + "\n")

        if _missing_scopes(self.valid()):  # a journal that may not be written is no hindrance where the keys are there
            self._store.write(add)
        return files

    def _new(self, name: str, scope: Scope, limits: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """A secret and the row of its key. Raises UserError for a name or limits that no key can have."""
        if not NAME.fullmatch(name):
            raise UserError(f"key name {name!r}: use letters, digits, space, . @ _ -, at most 100 characters")
        if limits["requests_per_minute"] <= 0 or limits["tokens_per_minute"] <= 0:
            raise UserError(f"key {name!r}: limits must be above 0; revoke a key to shut it out")
        row = {"run": self._store.run, "name": name, "scope": scope.value, "created_ms": self._store.clock()}
        return _with_secret({"expires_ms": None, "consented": False, **row, **limits})

    def _add(self, connection: Connection, row: Mapping[str, Any]) -> None:
        name = row["name"]
        if connection.execute(select(api_key.c.name).where(self._has_name(name))).first():
            raise UserError(f"there is a key called {name!r} already, revoked or not: choose another name")
        connection.execute(insert(api_key).values(**row))
        record_event(connection, self._store.clock(), "serving", "key.create", name, scope=row["scope"])

    def rotate(self, name: str, grace_ms: int) -> tuple[ApiKey, str]:
        """A new secret under the same name, scope and limits. The old one is valid for `grace_ms` more, under its name
        with its first characters. Raises UserError if there is no valid key of that name."""
        now = self._store.clock()
        fresh: dict[str, Any] = {}

        def apply(connection: Connection) -> None:
            old = (
                connection.execute(select(api_key).where(self._has_name(name) & self._valid_at(now))).mappings().first()
            )
            if old is None:
                raise UserError(f"there is no valid key called {name!r}")
            ends = min(now + grace_ms, old["expires_ms"] or now + grace_ms)
            aside = {"name": f"{name[:80]}~{old['key_prefix']}", "expires_ms": ends}
            connection.execute(update(api_key).where(self._has_name(name)).values(**aside))
            lasts = None if old["expires_ms"] is None else now + old["expires_ms"] - old["created_ms"]
            fresh["secret"], fresh["row"] = _with_secret({**old, "created_ms": now, "expires_ms": lasts})
            connection.execute(insert(api_key).values(**fresh["row"]))
            record_event(connection, now, "serving", "key.rotate", name, grace_ms=grace_ms)

        self._store.write(apply)
        return _key(fresh["row"]), fresh["secret"]

    def revoke(self, name: str) -> None:
        """Ends a key; a running endpoint notices within its polling interval. Raises UserError if there is none."""

        def apply(connection: Connection) -> None:
            now = self._store.clock()
            valid = self._has_name(name) & self._valid_at(now)
            if connection.execute(update(api_key).where(valid).values(revoked_ms=now)).rowcount == 0:
                raise UserError(f"there is no valid key called {name!r}")
            record_event(connection, now, "serving", "key.revoke", name)

        self._store.write(apply)

    def valid(self) -> Mapping[str, ApiKey]:
        """{hash of the secret: key}; looking a hash up tells an attacker nothing by its time."""
        with reading(self._store.engine) as connection:
            return self._valid(connection)

    def _valid(self, connection: Connection) -> Mapping[str, ApiKey]:
        query = select(api_key).where((api_key.c.run == self._store.run) & self._valid_at(self._store.clock()))
        rows = connection.execute(query.order_by(api_key.c.name)).mappings().all()
        return {row["key_sha256"]: _key(dict(row)) for row in rows}

    def _valid_at(self, now_ms: int) -> Any:
        return api_key.c.revoked_ms.is_(None) & (api_key.c.expires_ms.is_(None) | (api_key.c.expires_ms > now_ms))

    def _has_name(self, name: str) -> Any:
        return (api_key.c.run == self._store.run) & (api_key.c.name == name)


def _missing_scopes(valid: Mapping[str, ApiKey]) -> list[Scope]:
    """Which of a run's first keys are not there."""
    return [scope for scope in KEY_FILES if scope not in {key.scope for key in valid.values()}]


def _with_secret(row: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A new secret, and the row with its hash."""
    secret = new_token()
    return secret, {**row, "key_sha256": hashed(secret), "key_prefix": secret[:SHOWN]}


def _key(row: Mapping[str, Any]) -> ApiKey:
    limits = row["requests_per_minute"], row["tokens_per_minute"]
    scope, agreed = Scope(row["scope"]), bool(row["consented"])
    return ApiKey(row["name"], scope, *limits, row["key_prefix"], row["expires_ms"], agreed)
