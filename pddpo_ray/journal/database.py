"""Opens the journal's database: SQLite in WAL mode by a path, PostgreSQL by a URL, and brings its schema up to date.

`Prepared` statements run thousands of times a second: SQLAlchemy compiles them once, and the driver executes them
itself, for what SQLAlchemy does around each execution takes several times as long as SQLite takes to find a row.
Their values are passed and returned as the driver has them: SQLite's booleans are 0 and 1.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import namedtuple
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event, inspect, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from pddpo_ray.errors import UserError
from pddpo_ray.journal.filesystems import demand_local
from pddpo_ray.journal.schema import metadata
from pddpo_ray.storage.whole_files import refuse_password

HEAD = "0101"
"""Newest schema revision that this version of the package knows.

Its first two digits are the generation. Within one, revisions only add (tables, columns that may be left out), so that
software works with every journal of its generation, older or newer. One that takes something away begins the next.
"""
LOCK_WAIT_MS = 200
"""PostgreSQL: how long an upgrade waits for a table, less than the second after which a deadlock has a victim."""
LOCKED_STATES = ("55P03", "40P01")
BASELINE = "0015"
"""Schema of version 0.2.0, the oldest that is read."""
UPGRADE_LOCK = 0x7064_6470
"""One upgrade of a PostgreSQL database at a time."""
BUSY_TIMEOUT_S = 60
BETWEEN_TRIES_S = (0.0005, 0.004)
"""A writer's wait between two tries, drawn evenly."""
MIGRATIONS = Path(__file__).parent / "migrations"


def open_database(url_or_path: str | Path) -> Engine:
    """Engine for a database file or URL, with the newest schema. Raises UserError where that is impossible."""
    url = database_url(url_or_path)
    if url.get_backend_name() == "sqlite":
        if url.database and url.database != ":memory:":
            demand_local(Path(url.database))
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
        _make_sqlite_durable(engine)
    else:
        engine = create_engine(url, pool_pre_ping=True)
    try:
        upgrade(engine)
    except DBAPIError as error:
        name = url.render_as_string(hide_password=True)
        raise UserError(f"journal {name} cannot be opened: {error.orig}; check the path or the server") from error
    return engine


def database_url(url_or_path: str | Path) -> URL:
    """URL with the driver that is used. Raises UserError for what is none."""
    try:
        url = make_url(str(url_or_path) if "://" in str(url_or_path) else f"sqlite:///{url_or_path}")
    except ArgumentError as error:
        raise UserError("the journal's URL is not understood: write it as postgresql://user@host/name") from error
    refuse_password(str(url_or_path))
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _make_sqlite_durable(engine: Engine) -> None:
    """WAL, every commit on disk, foreign keys held, and writers that queue instead of failing half-way."""

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        # The driver must not start transactions by itself: `on_begin` decides which kind.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        if cursor.fetchone()[0] not in ("wal", "memory"):
            raise UserError("the journal's disk does not support SQLite's WAL mode; use a local disk or PostgreSQL")
        for pragma in ("synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_TIMEOUT_S * 1000}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # A deferred transaction that turns into a writer can fail with "database is locked" whatever the timeout.
        reading = connection.get_execution_options().get("reading", False)
        with driver_cursor(connection) as cursor:
            if reading:
                cursor.execute("BEGIN")
            else:
                _begin_writing(cursor)


def _begin_writing(cursor: Any) -> None:
    """The database's one place for a writer, within `BUSY_TIMEOUT_S`.

    SQLite's own waiting asks ten times a second. Beside writers that leave it half a millisecond between two commits of
    a slow disk that hardly ever succeeds: one of three was locked out for as long as the others worked.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    cursor.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                cursor.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                # the low byte is the kind of an error, the rest says more about it
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(*BETWEEN_TRIES_S))
    finally:
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent snapshot that never waits for a writer."""
    with engine.connect().execution_options(reading=True) as connection, connection.begin():
        yield connection


def overwrite_deleted(connection: Connection) -> None:
    """What this connection deletes or replaces is overwritten in SQLite's file; it would stay in free pages."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA secure_delete=ON")


def empty_write_ahead_log(engine: Engine) -> None:
    """SQLite's log holds pages as they were until it is emptied into the file; outside of any transaction."""
    if engine.dialect.name == "sqlite":
        connection = engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()


def upgrade(engine: Engine) -> None:
    """Brings the schema to HEAD: a new database gets today's tables, an older one the revisions that it lacks, in one
    transaction. Servers and drivers of its generation keep running: they wait, and nothing of theirs fails.

    Raises UserError for a schema that this software cannot use, and if tables stay locked.
    """
    if fits(known_revision(engine)):
        return
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            with engine.begin() as connection:
                _bring_up(connection)
            return
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in LOCKED_STATES:
                raise
            if time.monotonic() > deadline:
                raise UserError(
                    f"the journal's tables were in use for {BUSY_TIMEOUT_S} s and could not be upgraded: end long"
                    " transactions on this database, then try again"
                ) from error
        # what waited behind this transaction goes first
        time.sleep(random.uniform(0.1, 0.5))


def _bring_up(connection: Connection) -> None:
    # Imported here: a journal that is up to date, which is the usual case, should open without alembic's start-up.
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        # A deadlock would end a request of somebody else's: whoever upgrades gives way before PostgreSQL looks for one.
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({UPGRADE_LOCK})")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if _revision(connection) is None:
        metadata.create_all(connection)
        command.stamp(config, "head")
    else:
        command.upgrade(config, "head")


def fits(revision: str | None) -> bool:
    """Whether this software can use a schema as it is."""
    return revision is not None and revision >= HEAD


def known_revision(engine: Engine) -> str | None:
    """The schema's revision, None in an empty database. Raises UserError for one of a newer generation, or from before
    version 0.2.0."""
    with reading(engine) as connection:
        revision = _revision(connection)
    if revision is not None and revision < BASELINE:
        raise UserError(
            f"the journal has schema {revision}, of a version before 0.2.0: open it once with pddpo-ray 0.2.0, which"
            " brings it up to date"
        )
    if revision is not None and revision > HEAD and revision[:2] != HEAD[:2]:
        raise UserError(
            f"the journal has schema {revision}, this version of pddpo_ray knows {HEAD}: upgrade pddpo_ray to read it"
        )
    return revision


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Prepared:
    """A statement without lists among its values. Rows have columns as attributes."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._row: Any = namedtuple("Row", [column.name for column in statement.exported_columns])  # type: ignore[misc]
        self._sql_by_dialect: dict[str, tuple[str, dict[str, Any]]] = {}

    def run(self, connection: Connection, **values: Any) -> list[Any]:
        """The rows of a statement that returns some."""
        sql, constants = self._compile(connection.dialect)
        with driver_cursor(connection) as cursor:
            cursor.execute(sql, constants | values)
            return [self._row._make(row) for row in cursor.fetchall()]

    def run_each(self, connection: Connection, many: Sequence[dict[str, Any]]) -> None:
        """Executes a statement without rows for each of `many`."""
        sql, constants = self._compile(connection.dialect)
        with driver_cursor(connection) as cursor:
            cursor.executemany(sql, [constants | values for values in many])

    def _compile(self, dialect: Dialect) -> tuple[str, dict[str, Any]]:
        if dialect.name not in self._sql_by_dialect:
            # Values by name for either driver, so that one dictionary serves both.
            named_dialect = sqlite.dialect(paramstyle="named") if dialect.name == "sqlite" else dialect
            compiled = self._statement.compile(dialect=named_dialect)
            self._sql_by_dialect[dialect.name] = (compiled.string, compiled.params)
        return self._sql_by_dialect[dialect.name]


class driver_cursor:
    """The driver's own cursor. Its errors are raised as SQLAlchemy raises them."""

    def __init__(self, connection: Connection) -> None:
        self._errors = connection.dialect.loaded_dbapi.Error
        self._cursor = connection.connection.cursor()

    def __enter__(self) -> Any:
        return self._cursor

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._cursor.close()
        if isinstance(error, self._errors):
            raise DBAPIError.instance("", None, error, self._errors) from error
