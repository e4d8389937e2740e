"""Several processes share one SQLite file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.annotation_crowd import crowd_keeps_every_promise


@pytest.mark.full
@pytest.mark.slow
def test_processes_on_one_file_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    crowd_keeps_every_promise(str(tmp_path / "journal.sqlite"), tmp_path, questions=60, needed=3, processes=3)
