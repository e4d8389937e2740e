"""What verbs print: one JSON object, or aligned plain lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from pddpo_ray.storage.whole_files import finite


def print_json(value: Any) -> None:
    """One JSON object and nothing else; NaN and infinity, which JSON has not, become null."""
    typer.echo(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False, default=str))


def print_columns(rows: Iterable[Sequence[str]], indent: int = 0) -> None:
    """Rows of text with aligned columns; the last column may be long."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        typer.echo((" " * indent + "  ".join(cells)).rstrip())
