"""Several writers on one SQLite file: none is locked out by another that hardly lets go."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from pddpo_ray.journal import database
from pddpo_ray.journal.database import open_database


@pytest.mark.slow
def test_a_writer_gets_its_turn_beside_one_that_writes_without_a_pause(tmp_path: Path) -> None:
    """The other holds the file for 100 ms at a time and leaves half a millisecond: a slow disk. SQLite's own waiting,
    ten tries a second, needs about five of its turns for one of ours, this less than one.
    """
    engine = open_database(tmp_path / "journal.sqlite")
    turns, done, began = [0], threading.Event(), threading.Event()

    def write_on() -> None:
        other = sqlite3.connect(tmp_path / "journal.sqlite", timeout=60, isolation_level=None)
        while not done.is_set():
            other.execute("BEGIN IMMEDIATE")
            began.set()
            time.sleep(0.1)
            other.execute("COMMIT")
            turns[0] += 1
            time.sleep(0.0005)
        other.close()

    thread = threading.Thread(target=write_on)
    thread.start()
    try:
        began.wait(60)
        for _ in range(15):
            with engine.begin() as connection:
                connection.execute(text("PRAGMA user_version"))
    finally:
        done.set()
        thread.join()
        engine.dispose()
    assert turns[0] < 30


def test_a_writer_that_never_gets_its_turn_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_database(tmp_path / "journal.sqlite")
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0)
    with (
        engine.begin(),
        pytest.raises(OperationalError, match="database is locked"),
        engine.begin(),
    ):
        pass
    engine.dispose()
