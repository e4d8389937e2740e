"""Which run a folder holds: an identity that the journal keeps, whatever the folder is called and wherever it lies.

A journal in the folder names its run. Where a recipe names another database, the folder's `run.json` says which of its
runs is meant. A run remembers its home; a folder elsewhere whose home still holds the run is a copy of it.
"""

from __future__ import annotations

import json
import socket
import uuid
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, delete, select, text, update

from pddpo_ray.errors import DecisionNeeded, UserError
from pddpo_ray.journal.reading import JournalReader, read_journal
from pddpo_ray.journal.schema import driver, metadata, run
from pddpo_ray.storage.whole_files import JOURNAL

IDENTITY = "run.json"
QUESTIONS_ALONE = {"questions": "without a run"}
"""Stands for the recipe where a database holds questions for people and no run."""


def new_identity() -> str:
    return uuid.uuid4().hex


def open_folder(folder: Path, journal: str | Path | None = None, *, questions_alone: bool = False) -> JournalReader:
    """The run of a folder, to be read; `journal` is its database where it does not lie in the folder.
    `questions_alone`: or questions for people that belong to no run.

    Raises UserError if there is no run.
    """
    if journal is None and not (folder / JOURNAL).is_file():
        raise UserError(
            f"there is no run in {folder}: name the folder given to `pddpo train --run`, or its database with --journal"
        )
    folder_name = None if journal is None else folder.name
    reader = read_journal(journal or folder / JOURNAL, _stored_identity(folder) or folder_name)
    if reader.recipe == QUESTIONS_ALONE and not questions_alone:
        reader.close()
        raise UserError(
            f"{folder} holds questions without a run: `pddpo annotations` works on it, and `pddpo annotate --questions`"
        )
    return reader


def keep_identity(folder: Path, identity: str) -> None:
    """Writes which run of a database is this folder's."""
    if _stored_identity(folder) != identity:
        (folder / IDENTITY).write_text(json.dumps({"run": identity}) + "\n", encoding="utf-8")


def _stored_identity(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / IDENTITY).read_text(encoding="utf-8"))["run"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / IDENTITY} does not name a run: restore it from the original folder") from error


# --- home and copies ----------------------------------------------------------------------------------------------


def home_of(folder: Path) -> dict[str, Any]:
    """Where a folder lies, and what tells it from a copy: its inode, which a move within a disk keeps."""
    stat = folder.stat()
    return {"host": socket.gethostname(), "path": str(folder), "device": stat.st_dev, "inode": stat.st_ino}


def demand_original(folder: Path, reader: JournalReader, journal: str | Path | None = None) -> None:
    """Raises DecisionNeeded if the folder is a copy of a run that lives elsewhere. A moved folder is no copy.

    A folder at the home's path is taken for the original, on whichever machine: hosts change their names.
    """
    home, location = reader.about.home, home_of(folder)
    if home is None or home["path"] == location["path"]:
        return
    if all(home[key] == location[key] for key in ("host", "device", "inode")):
        return
    if home["host"] == location["host"] and not _holds(Path(home["path"]), reader.run_id, journal):
        return
    where = home["path"] if home["host"] == location["host"] else f"{home['path']} on {home['host']}"
    raise DecisionNeeded(
        f"{folder} is a copy of the run in {where}, which may be running; `pddpo train --run {folder} --resume"
        " --new-id` makes it a run of its own"
    )


def _holds(folder: Path, identity: str, journal: str | Path | None) -> bool:
    try:
        with open_folder(folder, journal) as other:
            return other.run_id == identity
    except UserError:
        return False


def become_child(engine: Engine, identity: str) -> str:
    """Gives a run, and what accompanies it, an identity of its own that names its parent. Returns it.

    Only in the copy's own database: rows on a server belong to the original.
    """
    child_id = new_identity()
    with engine.begin() as connection:
        if connection.dialect.name != "sqlite":
            raise UserError("the copy's journal is on a server and is the original's: start a new run folder instead")
        connection.execute(text("PRAGMA defer_foreign_keys=ON"))
        own_runs = (run.c.id == identity) | (run.c.part_of == identity)
        for old_id in connection.execute(select(run.c.id).where(own_runs)).scalars().all():
            new_id = child_id + old_id.removeprefix(identity)
            # Whoever drove the original when it was copied does not drive the copy.
            connection.execute(delete(driver).where(driver.c.run == old_id))
            for table in metadata.sorted_tables:
                if table is not run and "run" in table.c:
                    connection.execute(update(table).where(table.c.run == old_id).values(run=new_id))
            connection.execute(update(run).where(run.c.id == old_id).values(id=new_id))
        connection.execute(update(run).where(run.c.part_of == identity).values(part_of=child_id))
        connection.execute(update(run).where(run.c.id == child_id).values(parent=identity))
    return child_id
