"""The journal with all its labels as one file, and back: SQLite by its own backup, PostgreSQL by pg_dump.

Others may write to the database meanwhile; the backup holds one moment of it.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from sqlalchemy import select

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal.database import database_url, open_database, reading
from pddpo_ray.journal.lock import is_driven
from pddpo_ray.journal.schema import run as run_table
from pddpo_ray.storage.whole_files import written_aside

SET_ASIDE = ".before-restore"
"""Suffix of the SQLite journal that a restore replaced."""


def backup(journal: str | Path, out: Path) -> None:
    """Writes the database to `out`. Raises UserError for a file that is there already, RunError where it fails."""
    if out.exists():
        raise UserError(f"{out} is there already: name another file, nothing is written over")
    url = database_url(journal)
    with written_aside(out) as unfinished:
        if url.get_backend_name() != "sqlite":
            _program("pg_dump", "--format=custom", f"--file={unfinished}", _libpq(journal))
            return
        source_path = Path(str(url.database))
        if not source_path.is_file():
            raise UserError(f"there is no journal {source_path}")
        with closing(sqlite3.connect(source_path)) as source, closing(sqlite3.connect(unfinished)) as target:
            source.backup(target)
        _demand_sound(unfinished)


def restore(file: Path, journal: str | Path) -> Path | None:
    """Replaces the database by the backup; returns the path of SQLite's earlier file.

    Raises UserError for a file that is no backup, and while a process drives a run of the database.
    """
    if not file.is_file():
        raise UserError(f"there is no file {file}")
    url = database_url(journal)
    if url.get_backend_name() != "sqlite":
        _demand_undriven(journal)
        _program(
            "pg_restore", "--clean", "--if-exists", "--single-transaction", "--exit-on-error", "--no-owner",
            f"--dbname={_libpq(journal)}", str(file),
        )  # fmt: skip
        return None
    _demand_sound(file)
    path, old_path = Path(str(url.database)), None
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _demand_undriven(path)
        old_path = path.with_name(path.name + SET_ASIDE)
        if old_path.exists():
            raise UserError(f"{old_path} is there already, from an earlier restore: move it away first")
        backup(path, old_path)
    with written_aside(path) as unfinished:
        shutil.copyfile(file, unfinished)
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
    return old_path


def _demand_sound(file: Path) -> None:
    """Raises UserError unless the file is a whole SQLite journal."""
    try:
        with closing(sqlite3.connect(f"file:{file.absolute()}?mode=ro&immutable=1", uri=True)) as connection:
            sound = connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            sound = sound and bool(connection.execute("SELECT count(*) FROM run").fetchone())
    except sqlite3.DatabaseError as error:
        raise UserError(f"{file} is no backup of a journal: {error}") from error
    if not sound:
        raise UserError(f"{file} is damaged: SQLite's integrity check fails")


def _demand_undriven(journal: str | Path) -> None:
    engine = open_database(journal)
    try:
        with reading(engine) as connection:
            runs = list(connection.execute(select(run_table.c.id)).scalars())
        driven_runs = [run for run in runs if is_driven(engine, run)]
    finally:
        engine.dispose()
    if driven_runs:
        raise UserError(f"a process drives run {driven_runs[0]} of this database: end it before anything is restored")


def _libpq(journal: str | Path) -> str:
    """The URL as PostgreSQL's own programs read it."""
    return database_url(journal).set(drivername="postgresql").render_as_string(hide_password=False)


def _program(name: str, *arguments: str) -> None:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    program = shutil.which(name) or (str(debian[-1]) if debian else None)
    if program is None:
        raise UserError(f"{name} is not installed: it comes with PostgreSQL's client programs")
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RunError(
            f"{name} failed: {result.stderr.strip().splitlines()[-1] if result.stderr.strip() else 'no message'}"
        )
