"""A database of the revision before people had rates of their own, brought up to date."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from pddpo_ray.annotation.people.accounts import People, Role
from pddpo_ray.journal.database import HEAD, known_revision, open_database
from pddpo_ray.journal.transactions import Store

BEFORE = "0014"


def rates_after_upgrade(url: str) -> list[float | None]:
    """Ana's rate in a database of the revision before, upgraded; then with one of her own, and without it again."""
    older = open_database(url)
    ana = People(Store(older, "demo")).create("ana", Role.ANNOTATOR, by="test")[0]
    with older.begin() as connection:
        connection.execute(text("ALTER TABLE annotator DROP COLUMN hourly_rate"))
        connection.execute(text("UPDATE alembic_version SET version_num = :before"), {"before": BEFORE})
    older.dispose()
    upgraded = open_database(url)
    assert known_revision(upgraded) == HEAD
    people = People(Store(upgraded, "demo"))
    changes: list[dict[str, Any]] = [{}, {"hourly_rate": 17.5}, {"hourly_rate": None}]
    rates = [people.change(ana.id, by="test", **change).hourly_rate for change in changes]
    upgraded.dispose()
    return rates
