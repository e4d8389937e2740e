"""Many people on PostgreSQL while the service is killed; `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.annotation_load import survive

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]


def test_two_hundred_people_on_postgresql_and_three_kills(database: str, tmp_path: Path) -> None:
    figures = survive(tmp_path, database, people=200, questions=800, needed=5, kills=3, every_s=12.0)
    print(figures)
