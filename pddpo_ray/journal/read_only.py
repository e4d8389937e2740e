"""Opens the journal's database to read it: nothing in its folder is written, created or removed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from pddpo_ray.errors import UserError
from pddpo_ray.journal.database import BUSY_TIMEOUT_S, HEAD, database_url, fits, known_revision, open_database


def open_to_read(url_or_path: str | Path) -> Engine:
    """Engine that refuses to write. A journal of an older version is read from a migrated copy in a temporary folder.

    Raises UserError where there is no journal, or one of a newer version.
    """
    url = database_url(url_or_path)
    engine = _sqlite(url) if url.get_backend_name() == "sqlite" else _postgres(url)
    try:
        revision = known_revision(engine)
    except (DBAPIError, sqlite3.Error) as error:
        engine.dispose()
        name, cause = url.render_as_string(hide_password=True), getattr(error, "orig", error)
        raise UserError(f"journal {name} cannot be read: {cause}; check the path or the server") from error
    except UserError:
        engine.dispose()
        raise
    if fits(revision):
        return engine
    engine.dispose()
    if revision is None:
        raise UserError(f"{url.render_as_string()} is no journal: give the folder of a run that was started")
    if url.get_backend_name() != "sqlite":
        raise UserError(f"the journal has schema {revision}, this version reads {HEAD}: resume the run to bring it up")
    return _copy(Path(str(url.database)))


def _postgres(url: URL) -> Engine:
    return create_engine(url, pool_pre_ping=True, connect_args={"options": "-c default_transaction_read_only=on"})


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database))
    if not path.is_file():
        raise UserError(f"there is no journal at {path}: give the folder of a run that was started")
    if _log_of(path).exists() and not _index_of(path).exists() and _log_of(path).stat().st_size:
        # SQLite reads the log only through an index file, and would write the missing one beside it.
        return _copy(path)
    # A connection for each snapshot: whether a driver is at work may have changed since the last one.
    engine = create_engine("sqlite://", creator=lambda: _connect(path), poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _connect(path: Path) -> sqlite3.Connection:
    # SQLite creates a missing write-ahead log even for a reader, unless it is told that nobody writes (immutable).
    # Where there is no log nobody writes, and the file alone is the whole database.
    alone = "" if _index_of(path).exists() else "&immutable=1"
    uri = f"file:{quote(str(path.absolute()))}?mode=ro{alone}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def _copy(path: Path) -> Engine:
    """The same database in a temporary folder, which goes when the engine is disposed of, with the newest schema."""
    folder = TemporaryDirectory(prefix="pddpo-journal-")
    copy = Path(folder.name) / path.name
    if _index_of(path).exists() or not _log_of(path).exists():
        with closing(_connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    else:
        shutil.copyfile(path, copy)
        shutil.copyfile(_log_of(path), _log_of(copy))
    try:
        engine = open_database(copy)
    except BaseException:
        folder.cleanup()
        raise

    @event.listens_for(engine, "engine_disposed")
    def on_dispose(_engine: Any) -> None:
        folder.cleanup()

    return engine


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _index_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-shm")
