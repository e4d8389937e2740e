"""Results of costly computations, kept in a file by what was computed, so that a repeated command reads them back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Recall = Callable[[Any, Callable[[], Any]], Any]
"""(what, compute) -> the value for `what`, computed only if it is not known; both are JSON."""


def key_of(subject: Any) -> str:
    """A name for what was computed (JSON)."""
    return hashlib.sha256(json.dumps(subject, sort_keys=True, default=str).encode()).hexdigest()


class Memory:
    """Results by key, appended to a file of JSON lines. Several processes may append; a key's first line counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue  # a line that a killed process left unfinished
                self._results.setdefault(entry["key"], entry["value"])

    def recall(self, subject: Any, compute: Callable[[], Any]) -> Any:
        """The value for `subject` (JSON), computed at most once in the life of the file."""
        key = key_of(subject)
        if key not in self._results:
            value = json.loads(json.dumps(compute()))
            self._results[key] = value
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "value": value}) + "\n")
        return self._results[key]
