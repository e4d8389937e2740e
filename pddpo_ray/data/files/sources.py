"""Rows of files, folders, hub names and run folders. A file's content decides how it is read."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from pddpo_ray.config.file_checks import HUB
from pddpo_ray.data.checks.problems import Fault, Limits, Row
from pddpo_ray.data.files import column_files, text_files
from pddpo_ray.data.runs import rows_of_run
from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import LFS_POINTER

JOURNAL = "journal.sqlite"
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather")
PACKED = (".gz", ".xz")
GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ"


class InMemory(str):
    """Rows in memory as a source, with a name for messages. They are read twice, as files are."""

    rows: Iterable[Mapping[str, Any]]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], number: int) -> Self:
        """`number`: which of the sources it is, from 1. UserError for an iterator, which can be read once only."""
        if isinstance(rows, Iterator):
            raise UserError(f"data set {number} in memory can be read only once: give a list, or a datasets.Dataset")
        source = cls(f"data set {number} in memory")
        source.rows = rows
        return source


def expand(names: Sequence[str]) -> list[str]:
    """Single sources: folders are replaced by their data files, in order of name. UserError if there is nothing."""
    sources: list[str] = []
    for name in names:
        path = Path(name).expanduser()
        if isinstance(name, InMemory) or name.startswith(HUB) or is_run(name):
            sources.append(name)
        elif path.is_dir():
            inside = _of_folder(path)
            if not inside:
                raise UserError(f"{name} holds no data files ({', '.join(SUFFIXES)}): name files or another folder")
            sources += inside
        elif path.is_file():
            sources.append(name)
        else:
            hint = f"; a data set of the hub is {HUB}{name}" if name.count("/") == 1 and not path.suffix else ""
            raise UserError(f"there is no file {name}{hint}")
    return sources


def is_run(name: str) -> bool:
    """Whether this is the folder of a run."""
    return (Path(name).expanduser() / JOURNAL).is_file()


def read(name: str, limits: Limits) -> Iterator[Row | Fault]:
    """Rows of one source. Damage is yielded as faults, never raised."""
    if isinstance(name, InMemory):
        yield from (Row(number, dict(row)) for number, row in enumerate(name.rows, 1))
        return
    if name.startswith(HUB):
        yield from column_files.hub(name.removeprefix(HUB))
        return
    path = Path(name).expanduser()
    if path.is_dir():
        yield from rows_of_run(path)
        return
    try:
        yield from _read_file(path, limits)
    except OSError as error:
        yield Fault(0, "unreadable", f"{error.strerror or error}")


def _of_folder(folder: Path) -> list[str]:
    """Files of a data set that `datasets` saved to disk, split by split, else all data files below the folder."""
    if (folder / "dataset_dict.json").is_file():
        splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        return [name for split in splits for name in _of_folder(folder / split)]
    if (folder / "state.json").is_file():
        parts = json.loads((folder / "state.json").read_text(encoding="utf-8"))["_data_files"]
        return [str(folder / part["filename"]) for part in parts]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if _plain_suffix(path) in SUFFIXES]


def _plain_suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in PACKED]
    return suffixes[-1] if suffixes else ""


def _read_file(path: Path, limits: Limits) -> Iterator[Row | Fault]:
    with path.open("rb") as file:
        magic = file.read(len(LFS_POINTER))
    suffix = _plain_suffix(path)
    if not magic:
        yield Fault(0, "empty-file", "the file is empty")
    elif magic == LFS_POINTER:
        yield Fault(0, "unreadable", "the file is a pointer of Git LFS; fetch what it stands for: git lfs pull")
    elif magic.startswith(b"PAR1") or suffix == ".parquet":
        yield from column_files.parquet(path)
    elif magic.startswith(b"ARROW1") or magic.startswith(b"\xff\xff\xff\xff") or suffix in (".arrow", ".feather"):
        yield from column_files.arrow(path)
    elif magic.startswith((b"\xff\xfe", b"\xfe\xff")):
        yield Fault(0, "wrong-encoding", "the file is UTF-16; save it as UTF-8")
    elif path.suffix.lower() in PACKED and not magic.startswith((GZIP, XZ, b"{", b"[")):
        yield Fault(0, "broken-compression", f"the file is named {path.suffix} but is not compressed so")
    elif magic.startswith((b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh")):
        yield Fault(0, "unreadable", "an archive or a compression that is not read here; unpack it, or use gzip or xz")
    else:
        yield from _read_text(path, magic, suffix, limits)


def _read_text(path: Path, magic: bytes, suffix: str, limits: Limits) -> Iterator[Row | Fault]:
    last, is_empty = 0, True
    with _open_stream(path, magic) as file:
        try:
            for item in _text_rows(file, suffix, limits):
                last, is_empty = item.line, False
                yield item
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            why = "ends in the middle (a broken download?)" if _is_cut(error) else "is damaged"
            yield Fault(last + 1, "broken-compression", f"the compressed file {why}; {last} lines before it were read")
            return
    if is_empty:
        yield Fault(0, "empty-file", "the file holds no rows")


def _is_cut(error: Exception) -> bool:
    return isinstance(error, EOFError) or "end-of-stream" in str(error)


def _open_stream(path: Path, magic: bytes) -> BinaryIO:
    if magic.startswith(GZIP):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if magic.startswith(XZ):
        return cast(BinaryIO, lzma.open(path, "rb"))
    return path.open("rb")


def _text_rows(file: BinaryIO, suffix: str, limits: Limits) -> Iterator[Row | Fault]:
    if suffix in (".csv", ".tsv"):
        return text_files.delimited(file, limits, text_files.delimiter_of(file) if suffix == ".csv" else "\t")
    if _is_array(file, suffix):
        return text_files.json_array(file, limits)
    return text_files.json_lines(file, limits)


def _is_array(file: BinaryIO, suffix: str) -> bool:
    """Whether the rows are one JSON array. An array of objects is one under any name: a line is never a list."""
    head = file.read(64).removeprefix(text_files.BOM).lstrip()
    file.seek(0)
    return head.startswith(b"[") and (suffix == ".json" or head[1:].lstrip().startswith(b"{"))
