"""Journals as JSON lines, which one process appends to and may be killed while it does."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def whole_lines(journal: Path) -> list[dict[str, Any]]:
    """Whole lines; a torn last one, of a killed process, is left out."""
    if not journal.is_file():
        return []
    lines = []
    for text in journal.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def append_line(journal: Path, line: Mapping[str, Any]) -> None:
    """One line that is on the disk when this returns."""
    with journal.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
