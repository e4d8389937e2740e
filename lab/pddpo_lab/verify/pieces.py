"""Finished rows of long tables, kept on disk: an interrupted command continues where it stopped."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pddpo_ray
from pddpo_ray.storage.whole_files import write_whole

Row = dict[str, object]

SOURCES = (
    *(Path(pddpo_ray.__file__).parent / room for room in ("worlds", "exploration", "theory")),
    Path(__file__).parent,
)
"""What decides the rows; after a change of any of it they are computed anew."""


class Pieces:
    """Rows by name, each with the processor seconds that it took. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self._file = None if folder is None else folder / f"rows-{fingerprint()[:12]}.json"
        there = self._file is not None and self._file.exists()
        self._known: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8")) if there and self._file else {}

    def row(self, name: str, compute: Callable[[], Row]) -> Row:
        """The row of that name: read back if it is known, else computed and written before anything else."""
        if name not in self._known:
            began = time.process_time()
            row = compute()
            self._known[name] = {"row": row, "cpu_seconds": round(time.process_time() - began, 2)}
            self._write()
        stored: Row = self._known[name]["row"]
        return stored

    @property
    def cpu_minutes(self) -> float:
        """Processor time of all rows, over all the runs of the command that made them."""
        return sum(entry["cpu_seconds"] for entry in self._known.values()) / 60.0

    def _write(self) -> None:
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._file, json.dumps(self._known, indent=1) + "\n")


def fingerprint() -> str:
    """sha256 of the sources that decide the rows."""
    content = hashlib.sha256()
    for room in SOURCES:
        for file in sorted(room.rglob("*.py")):
            content.update(f"{room.name}/{file.name}".encode() + b"\0" + file.read_bytes())
    return content.hexdigest()
