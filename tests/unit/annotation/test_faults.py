"""The service is killed while people answer (SQLite). The longer form runs with `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.annotation_load import survive


@pytest.mark.slow
def test_killing_the_service_loses_no_acknowledged_answer(tmp_path: Path) -> None:
    figures = survive(tmp_path, None, people=8, questions=60, needed=3, kills=1, every_s=1.0)
    print(figures)


@pytest.mark.chaos
def test_fifty_people_on_sqlite_and_three_kills(tmp_path: Path) -> None:
    figures = survive(tmp_path, None, people=50, questions=800, needed=5, kills=3, every_s=8.0)
    print(figures)
