"""What can be wrong with data, each with a short stable name. No report quotes the text of a row: it may be harmful."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pddpo_ray.data.formats.example import Example

KEEPABLE = ("duplicate", "duplicate-id", "contradiction", "leakage")
"""Problems between rows, which a person may decide to live with (`--keep`)."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in words for a person. Line 0 speaks of the whole file."""

    file: str
    line: int
    kind: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.kind}: {self.reason}"


class RowError(Exception):
    """A row that cannot be used; `kind` is the stable name, the message says why."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True)
class Limits:
    """Bounds that keep memory bounded whatever a file holds."""

    line_bytes: int = 8 << 20
    """Longest line of a text file, and longest text in a column."""
    quarantined_characters: int = 2000
    """So much of an unreadable line is kept in the quarantine file."""


@dataclass(frozen=True)
class Row:
    """A row as its file holds it: field names to values."""

    line: int
    value: dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A place in a file where no row could be read. `line` 0: the file as a whole. `text`: what stood there."""

    line: int
    kind: str
    reason: str
    text: str = ""


@dataclass(frozen=True)
class Good:
    """A row that was understood, with its place; `row` as the file holds it."""

    file: str
    line: int
    example: Example
    row: dict[str, Any]


@dataclass(frozen=True)
class Bad:
    """A row (or file) that was set aside, with what it held as far as it could be read."""

    problem: Problem
    row: dict[str, Any] | None = None
    text: str = ""


def shown(value: object) -> str:
    """A label's value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
