"""Whoever upgrades a PostgreSQL database never holds up those who use it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from pddpo_ray.journal.database import HEAD, known_revision, open_database
from tests.support.next_revision import with_next_revision

pytestmark = [pytest.mark.postgres, pytest.mark.full]

READ = text("SELECT count(*) FROM task")
WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
PATIENCE_S = 20


def test_a_reader_passes_an_upgrade_that_waits_for_somebody_elses_transaction(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL lets nobody pass who comes after an upgrade in its queue for a table: so it leaves the queue."""
    open_database(database).dispose()
    newer = with_next_revision(tmp_path, monkeypatch)
    patience = {"options": f"-c statement_timeout={PATIENCE_S}s"}
    engine = create_engine(database, connect_args=patience)
    assert known_revision(engine) == HEAD
    upgrading = threading.Thread(target=lambda: open_database(database).dispose(), daemon=True)
    with engine.connect() as long:
        long.execute(READ)  # keeps a share of the table until its transaction ends
        upgrading.start()
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            deadline = time.monotonic() + PATIENCE_S
            while not other.execute(WAITING).scalar():
                assert time.monotonic() < deadline
            assert other.execute(READ).scalar() == 0
        assert upgrading.is_alive()
        assert known_revision(engine) == HEAD
    upgrading.join(PATIENCE_S)
    assert known_revision(engine) == newer
    engine.dispose()
