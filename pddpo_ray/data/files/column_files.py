"""Rows of columnar data: Parquet and Arrow files, and data sets by hub name. One batch is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pddpo_ray.data.checks.problems import Fault, Row
from pddpo_ray.errors import PddpoError

BATCH = 512
BUFFER = 1 << 16
"""Bytes of a column that are read at a time."""


def parquet(path: Path) -> Iterator[Row | Fault]:
    """Rows of a Parquet file, batch by batch, however large its row groups are."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    number = 0
    try:
        # by default whole columns of a row group are read ahead: of a file in one group, the file
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER) as file:
            for batch in file.iter_batches(batch_size=BATCH, use_threads=False):
                yield from _rows(batch, number)
                number += batch.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Fault(0, "unreadable", f"Parquet stops after row {number}: {_short(error)}")


def arrow(path: Path) -> Iterator[Row | Fault]:
    """Rows of an Arrow file: the stream format that `datasets` writes, or the file format (feather)."""
    import pyarrow as pa

    number = 0
    try:
        with pa.memory_map(str(path)) as source:
            for batch in _batches(source, path):
                for start in range(0, batch.num_rows, BATCH):
                    part = batch.slice(start, BATCH)
                    yield from _rows(part, number)
                    number += part.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Fault(0, "unreadable", f"Arrow stops after row {number}: {_short(error)}")


def hub(name: str) -> Iterator[Row | Fault]:
    """Rows of `owner/name`, `owner/name:split` or `owner/name@config:split`, streamed through `datasets`."""
    from datasets import load_dataset

    dataset, _, split = name.partition(":")
    dataset, _, config = dataset.partition("@")
    number = 0
    try:
        for value in load_dataset(dataset, config or None, split=split or "train", streaming=True):
            number += 1
            yield Row(number, dict(value))
    except PddpoError:
        raise
    except Exception as error:  # whatever the hub's client raises: no such name, no network, broken file
        yield Fault(0, "unreadable", f"`datasets` stops after row {number}: {_short(error)}")


def _batches(source: Any, path: Path) -> Iterator[Any]:
    import pyarrow as pa

    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    if not is_file:
        yield from pa.ipc.open_stream(source)
        return
    reader = pa.ipc.open_file(source)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _rows(batch: Any, before: int) -> Iterator[Row | Fault]:
    try:
        values = batch.to_pylist()
    except UnicodeDecodeError:
        for index in range(batch.num_rows):
            try:
                yield Row(before + index + 1, batch.slice(index, 1).to_pylist()[0])
            except UnicodeDecodeError as error:
                reason = f"a text is not UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start + 1}"
                yield Fault(before + index + 1, "wrong-encoding", reason)
        return
    for index, value in enumerate(values):
        yield Row(before + index + 1, value)


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."
