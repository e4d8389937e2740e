"""The log of administration: every entry holds the hash of the one before."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import Connection, insert, select

from pddpo_ray.journal.annotation_schema import audit_event

GENESIS = "0" * 64


def record_event(connection: Connection, at_ms: int, actor: str, action: str, object_: str, **data: Any) -> None:
    """Appends to the log inside the caller's transaction, chained to the entry before."""
    last = connection.execute(select(audit_event.c.sha256).order_by(audit_event.c.seq.desc()).limit(1)).scalar()
    previous = last or GENESIS
    digest = digest_of(at_ms, actor, action, object_, data, previous)
    connection.execute(
        insert(audit_event).values(
            at_ms=at_ms, actor=actor, action=action, object=object_, data=data, previous=previous, sha256=digest
        )
    )


def digest_of(at_ms: int, actor: str, action: str, object_: str, data: Any, previous: str) -> str:
    content = json.dumps([at_ms, actor, action, object_, data, previous], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()
