"""Finds rows that belong together (repeats, contradictions, leaks) among any number of rows in bounded memory.

Each row leaves 27 bytes: a 128-bit key, its number, its file and line, and a code for its labels. They are spread over
files by key; equal keys meet in one file, and one file at a time is read back and sorted.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKETS = 64
FLUSH_BYTES = 1 << 15
RECORD = struct.Struct("<QQIHIB")
FIELDS = [("high", "<u8"), ("low", "<u8"), ("row", "<u4"), ("file", "<u2"), ("line", "<u4"), ("code", "u1")]


def key_of(*parts: str) -> bytes:
    """Key of texts in this order; no two lists of texts share one."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode()
        digest.update(struct.pack("<Q", len(encoded)))
        digest.update(encoded)
    return digest.digest()


@dataclass(frozen=True)
class Entry:
    """A row of the index: its number over all files, its place, and its code."""

    row: int
    file: int
    line: int
    code: int


class RowIndex:
    """Entries by key. Beyond some megabytes they lie in `folder`, which the caller removes."""

    def __init__(self, folder: Path, name: str, *, flush_bytes: int = FLUSH_BYTES) -> None:
        self._flush_bytes = flush_bytes
        self._paths = [folder / f"{name}-{bucket:02d}" for bucket in range(BUCKETS)]
        self._waiting = [bytearray() for _ in range(BUCKETS)]

    def add(self, key: bytes, entry: Entry) -> None:
        bucket = key[0] % BUCKETS
        buffer = self._waiting[bucket]
        high, low = struct.unpack("<QQ", key)
        buffer += RECORD.pack(high, low, entry.row, entry.file, entry.line, entry.code)
        if len(buffer) >= self._flush_bytes:
            with self._paths[bucket].open("ab") as file:
                file.write(buffer)
            buffer.clear()

    def groups(self) -> Iterator[list[Entry]]:
        """Entries with one key, in order of their rows; keys in no particular order, single entries left out."""
        for entries, begins, ends in self._sorted_buckets():
            import numpy as np

            for number in np.flatnonzero(ends - begins > 1):
                group = entries[begins[number] : ends[number]]
                yield [Entry(int(e["row"]), int(e["file"]), int(e["line"]), int(e["code"])) for e in group]

    def distinct(self) -> int:
        """Number of keys."""
        return sum(len(begins) for _, begins, _ in self._sorted_buckets())

    def _sorted_buckets(self) -> Iterator[tuple[Any, Any, Any]]:
        import numpy as np

        for path, buffer in zip(self._paths, self._waiting, strict=True):
            stored = path.read_bytes() if path.exists() else b""
            entries = np.frombuffer(stored + bytes(buffer), dtype=np.dtype(FIELDS))
            if not len(entries):
                continue
            entries = entries[np.lexsort((entries["row"], entries["low"], entries["high"]))]
            differs = (entries["high"][1:] != entries["high"][:-1]) | (entries["low"][1:] != entries["low"][:-1])
            begins = np.concatenate([[0], np.flatnonzero(differs) + 1])
            yield entries, begins, np.concatenate([begins[1:], [len(entries)]])
