"""What verbs print: one JSON object, aligned plain lines, or what a run says while it works."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from pddpo_ray.errors import UserError
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


UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h|d)")


def milliseconds(option: str, text: str, also: str = "") -> int:
    """A duration above 0, e.g. `2h`. Raises UserError, whose message ends with `also`."""
    written = DURATION.fullmatch(text.strip())
    if written is None or float(written[1]) <= 0:
        raise UserError(f"{option} {text}: write a time such as 30min, 2h or 3d{also}")
    return int(float(written[1]) * UNITS[written[2]] * 1000)


SPOKEN = (
    "pddpo_ray.annotation",  # what a run waits for
    "pddpo_ray.certificates",
    "pddpo_ray.data.real_text",
    "pddpo_ray.driver.cut_answers",
    "pddpo_ray.parts.fitting",
    "pddpo_ray.parts.reachable",
    "pddpo_ray.scorers.fits",
    "pddpo_ray.scorers.gate",
    "pddpo_ray.training.progress",
)
"""Loggers whose messages a person sees during a run."""


@contextmanager
def spoken(say: Callable[[str], None]) -> Iterator[None]:
    """Passes on what the run says in words: what it waits for, reads, trains and finds."""

    class Spoken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    handler, before = Spoken(logging.INFO), {}
    for name in SPOKEN:
        source = logging.getLogger(name)
        before[source] = source.level
        source.setLevel(logging.INFO)
        source.addHandler(handler)
    try:
        yield
    finally:
        for source, level in before.items():
            source.removeHandler(handler)
            source.setLevel(level)
