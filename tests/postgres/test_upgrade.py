"""A database is upgraded while servers and a driver use it; nothing of theirs fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.upgraded_under_load import upgraded_under_load

SIZE = {"people": 8, "questions": 150}


@pytest.mark.full
@pytest.mark.slow
def test_an_upgrade_under_load_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    print(upgraded_under_load(tmp_path, None, monkeypatch, **SIZE))


@pytest.mark.full
@pytest.mark.postgres
def test_an_upgrade_under_load_on_postgresql_with_both_versions_beside_each_other(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(upgraded_under_load(tmp_path, database, monkeypatch, **SIZE))
