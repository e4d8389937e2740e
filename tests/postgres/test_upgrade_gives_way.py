"""Whoever upgrades a PostgreSQL database never holds up those who use it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from pddpo_ray.journal.database import HEAD, known_revision, open_database
from tests.support.annotation_load import started_with
from tests.support.upgraded_under_load import REVISION, SOFTWARE

pytestmark = [pytest.mark.postgres, pytest.mark.full]

OLDER = "import sys; from pddpo_ray.journal.database import open_database; open_database(sys.argv[1]).dispose()"
READ = text("SELECT count(*) FROM task")
WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
PATIENCE_S = 20


def test_a_reader_passes_an_upgrade_that_waits_for_somebody_elses_transaction(database: str, tmp_path: Path) -> None:
    """PostgreSQL lets nobody pass who comes after an upgrade in its queue for a table: so it leaves the queue."""
    with tarfile.open(SOFTWARE) as packed:
        packed.extractall(tmp_path, filter="data")
    subprocess.run([sys.executable, "-c", OLDER, database], check=True, **started_with(tmp_path))
    patience = {"options": f"-c statement_timeout={PATIENCE_S}s"}
    engine = create_engine(database, connect_args=patience)
    assert known_revision(engine) == REVISION
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
        assert known_revision(engine) == REVISION
    upgrading.join(PATIENCE_S)
    assert known_revision(engine) == HEAD
    engine.dispose()
