"""What people said as a file: all there is, one row per answer, or a format of `pddpo data`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pddpo_ray.annotation.label_rows import label_rows
from pddpo_ray.annotation.queue.exchange import contradictory, examples
from pddpo_ray.data.convert import rendering
from pddpo_ray.data.files.sinks import Sink, schema_of
from pddpo_ray.data.formats.example import Dimension
from pddpo_ray.data.formats.standard import WRITABLE, write_rows
from pddpo_ray.errors import UserError
from pddpo_ray.journal.transactions import Store

LABELS = "labels"
"""Format that loses nothing: one row per answer."""


@dataclass(frozen=True)
class Written:
    """Rows of the file; of a format for training also how many examples have no label for it, and how many answers were
    left out since they contradict themselves."""

    rows: int
    without_a_label_for_it: int = 0
    contradictory: int = 0


def write_label_file(
    store: Store, out: Path, to: str = LABELS, *, dimension: Dimension = "helpful", round_: int | None = None
) -> Written:
    """Writes a .jsonl, .jsonl.gz, .parquet or .arrow; no file where there is no row. Raises UserError for another
    format or name."""
    if to == LABELS:
        with Sink(out, LABELS) as sink:
            for row in label_rows(store, round_=round_):
                sink.write(row)
        return Written(sink.rows)
    if to not in WRITABLE:
        raise UserError(f"--to {to} is unknown: use {LABELS}, {', '.join(WRITABLE)}")
    prompt = rendering("plain", None, None).prompt
    left_out = 0
    with Sink(out, to, dimension) as sink:
        for example in examples(store, round_=round_):
            rows = write_rows(example, to, dimension, prompt)
            left_out += not rows
            for row in rows:
                sink.write(row)
    return Written(sink.rows, left_out, contradictory(store, round_=round_))


def write_empty(out: Path, to: str) -> None:
    """A file without rows: for Parquet with the format's columns."""
    if out.suffix != ".parquet":
        out.touch()
        return
    from pyarrow import parquet

    parquet.write_table(schema_of(to, "helpful").empty_table(), out)
