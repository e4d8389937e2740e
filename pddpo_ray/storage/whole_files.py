"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """A JSON file, whole or not at all. Numbers that do not exist are null."""
    return write_whole(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
