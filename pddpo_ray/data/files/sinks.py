"""Writing rows to JSON lines, Parquet or Arrow: whole files or none, a batch in memory at a time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from pddpo_ray.data.formats.example import Dimension
from pddpo_ray.data.formats.standard import PKU_CATEGORIES, PREFERRED, lead_of
from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import written_aside

BATCH = 1000
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".arrow")


class JsonLines:
    """One object per line; with `.gz` compressed, without a time stamp, so equal rows give equal bytes."""

    def __init__(self, path: Path, *, packed: bool) -> None:
        self._raw = path.open("wb")
        self._file = cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=self._raw, mtime=0) if packed else self._raw)

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n")

    def close(self) -> None:
        self._file.close()
        self._raw.close()


class Columns:
    """Parquet, or the Arrow stream that `datasets` reads. The columns follow from the format, not from the rows."""

    def __init__(self, path: Path, schema: Any, *, parquet: bool) -> None:
        import pyarrow as pa
        from pyarrow import parquet as pq

        self._schema = schema
        self._file = path.open("wb")
        self._writer: Any = (
            pq.ParquetWriter(self._file, self._schema) if parquet else pa.ipc.new_stream(self._file, self._schema)
        )
        self._waiting: list[dict[str, Any]] = []

    def write(self, row: dict[str, Any]) -> None:
        self._waiting.append(row)
        if len(self._waiting) >= BATCH:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._file.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write(pa.Table.from_pylist(self._waiting, schema=self._schema))
            self._waiting.clear()


class Sink:
    """The file appears under its name when it is complete; after an error, or without rows, there is none."""

    def __init__(self, path: Path, form: str, dimension: Dimension = "helpful") -> None:
        demand_writable(path)
        self.path, self.rows = path, 0
        self._aside = written_aside(path)
        self._partial_path = self._aside.__enter__()
        kind = path.suffix.lower()
        self._writer: JsonLines | Columns
        if kind in (".jsonl", ".gz"):
            self._writer = JsonLines(self._partial_path, packed=kind == ".gz")
        else:
            self._writer = Columns(self._partial_path, schema_of(form, dimension), parquet=kind == ".parquet")

    def write(self, row: dict[str, Any]) -> None:
        self._writer.write(row)
        self.rows += 1

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        if not self.rows:
            self._partial_path.unlink()
        self._aside.__exit__(kind, error, trace)


def demand_writable(path: Path) -> None:
    """UserError unless the name says a form that can be written."""
    name = path.name.lower()
    if name.endswith((".csv", ".tsv")):
        raise UserError(f"{path}: CSV is read, not written (cells that begin with = run as formulas); use .parquet")
    if not name.endswith(SUFFIXES):
        raise UserError(f"{path}: the name must end with {', '.join(SUFFIXES)}")


def schema_of(form: str, dimension: Dimension) -> Any:
    """Columns of a format as an Arrow schema."""
    import pyarrow as pa

    text, number, truth = pa.string(), pa.int64(), pa.bool_()
    harm = pa.struct([(name, truth) for name in PKU_CATEGORIES])
    message = pa.list_(pa.struct([("role", text), ("content", text)]))
    pair = [(name, text) for name in PREFERRED]
    columns: dict[str, list[tuple[str, Any]]] = {
        "pku": [
            ("prompt", text),
            *((f"response_{index}", text) for index in (0, 1)),
            *((f"is_response_{index}_safe", truth) for index in (0, 1)),
            *((f"response_{index}_harm_category", harm) for index in (0, 1)),
            *((f"response_{index}_severity_level", number) for index in (0, 1)),
            ("better_response_id", number),
            ("safer_response_id", number),
        ],
        "pku-qa": [
            ("prompt", text), ("response", text), ("is_safe", truth), ("severity_level", number),
            ("harm_category", harm),
        ],
        "hh": pair,
        "trl": [("prompt", text), *pair],
        "trl-chat": [("prompt", message), ("chosen", message), ("rejected", message)],
        "pairs": [("prompt", text), *((name, text) for name in lead_of(dimension))],
        "answers": [("prompt", text), ("response", text)],
        "prompts": [("prompt", text)],
        "labels": [
            ("round", number), *((name, text) for name in ("purpose", "item", "kind", "prompt", "first", "second")),
            ("policy_version", number), ("second_policy_version", number), ("annotator", text), ("reply", text),
            *((name, text) for name in ("safety", "more_helpful", "more_harmful", "first_safety", "second_safety")),
            ("better", text), ("number", text),
            ("reason", text), ("note", text), ("ms_spent", number), ("revealed", truth), ("outcome", text),
            ("late", truth), ("guideline", number), ("swap", truth), ("at_ms", number), ("guideline_text", text),
            ("leased_ms", number), ("seat", number), ("withdrawn_kind", text), ("withdrawn_reason", text),
            ("withdrawn_at_ms", number),
        ],
        "measurements": [
            ("round", number), *((name, text) for name in ("purpose", "limit")), ("value", pa.float64()),
            ("missing", text), ("source", text), ("opinion", number), ("person", text), ("chance", pa.float64()),
            ("against", pa.float64()), ("at_ms", number), ("policy_version", number),
            *((name, text) for name in ("prompt_id", "prompt", "response")),
        ],
    }  # fmt: skip
    return pa.schema([("id", text), *columns[form]])
