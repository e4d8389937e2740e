"""A run's files: their names, written whole or not at all, and what to do when the disk is full."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pddpo_ray.errors import RunError, UserError, causes_of

WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
"""Index of a checkpoint with several weight files: which tensor is in which."""
PLAIN_FILES = frozenset({".json", ".jinja", ".model", ".txt"})
"""Endings of the other files of a checkpoint: configuration, tokenizer, chat template."""
ADAPTER_BASE = "adapter_base.json"
"""In a version that is stored as an adapter: the artifact that it is to be added to."""
NF4_BASE = "nf4_base.json"
"""In a reference that stands for weights of 4 bits: the artifact that holds them."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter, as peft writes them."""
KEPT_WHOLE = 4
"""At least this many of the newest weights merged from adapters are kept."""
JOURNAL = "journal.sqlite"
"""The journal in a run's folder, where the recipe names no other database."""
ARTIFACTS = "artifacts"
"""Folder of the artifacts in a run's folder."""
RESULT = "result.json"
LFS_POINTER = b"version https://git-lfs"
"""First bytes of a Git LFS pointer: its content was not fetched."""


def copy_plain_files(source: Path, target: Path) -> None:
    """Copies a checkpoint's configuration, tokenizer and template, but neither its weights nor their index."""
    of_weights = (".index.json", ADAPTER_BASE, NF4_BASE)
    for file in source.iterdir():
        if file.is_file() and file.suffix in PLAIN_FILES and not file.name.endswith(of_weights):
            shutil.copyfile(file, target / file.name)


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """A path beside `target` for a file or folder, which becomes `target` when the block ends without an error.

    A reader, or a crash in between, never meets half of it. A folder that another process finished meanwhile stays. A
    block that wrote nothing changes nothing.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        yield aside
        if aside.is_dir():
            _rename_folder(aside, target)
        elif aside.exists():
            aside.replace(target)
    finally:
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)


def _rename_folder(aside: Path, target: Path) -> None:
    try:
        aside.rename(target)
    except OSError:
        if not target.exists():
            raise


def write_whole(path: Path, text: str) -> Path:
    """Writes a text file, whole or not at all. Returns the path."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", errors="replace")
    return path


def finite(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinity become null."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Writes JSON, whole or not at all; NaN and infinity become null."""
    return write_whole(path, json.dumps(finite(content), indent=2, allow_nan=False) + "\n")


def write_secret(path: Path, secret: str) -> Path:
    """A file that only its owner can read, also where there was one before. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret)
    return path


def kept_secret(path: Path) -> str:
    """The secret in a file that only its owner can read; the first process makes it."""
    if not path.exists():
        aside = write_secret(path.with_name(f".{path.name}-{secrets.token_hex(4)}"), secrets.token_urlsafe(32) + "\n")
        try:
            os.link(aside, path)  # whole or not at all, and only where there is none
        except FileExistsError:
            pass
        finally:
            aside.unlink()
    return path.read_text().strip()


def refuse_password(url: str) -> None:
    """Raises UserError where a database URL holds a password, which recipes, journals and process lists would show."""
    if re.search(r"://[^/@:]*:[^@]*@", url) is None:
        return
    where = url.rpartition("@")[2]
    raise UserError(
        f"the journal's URL (...@{where}) holds a password, which recipes and logs would show: leave it out of the URL"
        " and give it by the environment variable PGPASSWORD or by a file that PGPASSFILE names"
    )


FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def explain_disk(path: Path) -> Iterator[None]:
    """Turns what file systems and SQLite say about a full or a read-only disk into an error that says what to do.

    Raises RunError for a full disk, UserError for a run folder that may not be written.
    """
    try:
        yield
    except Exception as error:
        if is_full(error, path):
            raise RunError(
                f"no space is left for {path}: make room and add --resume, finished phases are kept"
            ) from error
        if is_closed(error, path):
            raise UserError(
                f"{path} cannot be written by this user: mount it for writing or change its owner, or name another run"
                " folder with --run"
            ) from error
        raise


def is_full(error: BaseException, path: Path) -> bool:
    """Whether an error, or one that caused it, says that a disk or a quota is full; `path` lies on that disk.

    SQLite says "disk I/O error" where no room is left for the index of its write-ahead log.
    """
    return any(_is_full_error(cause, path) for cause in causes_of(error))


def _is_full_error(error: BaseException, path: Path) -> bool:
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    text = _database_message(error)
    return "disk is full" in text or ("disk I/O error" in text and _room(path) == 0)


def is_closed(error: BaseException, path: Path) -> bool:
    """Whether an error, or one that caused it, says that `path` or what lies in it may not be written."""
    return any(_is_closed_error(cause, path) for cause in causes_of(error))


def _is_closed_error(error: BaseException, path: Path) -> bool:
    if isinstance(error, OSError) and error.errno in CLOSED:
        return error.filename is not None and _touches(Path(os.fsdecode(error.filename)), path)
    text = _database_message(error)
    return "readonly database" in text or ("unable to open" in text and path.is_dir() and not os.access(path, os.W_OK))


def _touches(file: Path, folder: Path) -> bool:
    """Whether a file is the folder, lies in it, or is one in which the folder would have been made."""
    file, folder = file.absolute(), folder.absolute()
    return file.is_relative_to(folder) or folder.is_relative_to(file)


def _database_message(error: BaseException) -> str:
    from sqlalchemy.exc import OperationalError

    return str(error.orig) if isinstance(error, OperationalError) else ""


def _room(path: Path) -> int:
    """Bytes that an ordinary user may still write on the disk of a path, which need not exist."""
    folder = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(folder).free


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` unless it is there already. Two runs that start together never read half of it."""
    if folder.exists():
        return folder
    with written_aside(folder) as staging:
        staging.mkdir()
        make(staging)
    return folder


def cache_folder(configured: str | None = None) -> Path:
    """Where made and fetched models are kept: as configured, else `$PDDPO_CACHE`, else `~/.cache/pddpo_ray`."""
    return Path(configured or os.environ.get("PDDPO_CACHE") or "~/.cache/pddpo_ray").expanduser()
