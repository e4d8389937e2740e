"""200 people, 5,000 questions of three labels, twenty kills of the server; the run ends by itself. `make chaos`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.annotation_run_load import run_ends_by_itself
from tests.support.postgres_server import postgres_server

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7200)]

SIZE: dict[str, Any] = {"people": 200, "questions": 5000, "needed": 3, "kills": 20, "think_s": 10.0}


@pytest.fixture
def database() -> Iterator[str]:
    with postgres_server() as url:
        yield url


def test_a_run_of_two_hundred_people_ends_by_itself_on_sqlite(tmp_path: Path) -> None:
    print(run_ends_by_itself(tmp_path, None, **SIZE))


@pytest.mark.postgres
def test_a_run_of_two_hundred_people_ends_by_itself_on_postgresql(tmp_path: Path, database: str) -> None:
    print(run_ends_by_itself(tmp_path, database, **SIZE))
