"""Text files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> Path:
    """Writes beside the file and renames: a reader, or a crash in between, never meets half of it. Returns the path."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(text, encoding="utf-8", errors="replace")
    return unfinished.replace(path)


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """A JSON file, whole or not at all. Numbers that do not exist are null."""
    return write_whole(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
