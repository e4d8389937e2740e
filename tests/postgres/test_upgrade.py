"""A database of 0.2.0 is brought up to date, and one is upgraded while servers and a driver use it: nothing of theirs
fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.journal_of_0_2 import begun_by_0_2, demand_its_labels
from tests.support.upgraded_under_load import upgraded_under_load

SIZE = {"people": 8, "questions": 150}


@pytest.mark.full
@pytest.mark.postgres
def test_labels_of_0_2_are_measurements_after_the_upgrade(database: str) -> None:
    begun_by_0_2(database)
    demand_its_labels(database)


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
