"""Rows in memory as a file beside them, for what reads files and must find them again: a run that is resumed later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import write_whole


def kept(rows: Iterable[Mapping[str, Any] | str], folder: Path, name: str) -> Path:
    """The rows as `folder/NAME-HASH.jsonl`; a row that is a text is a prompt. Other rows get another file.

    Raises UserError, with the row's number, for none at all, and for one that JSON cannot hold.
    """
    lines = [_line(row, f"{name}, row {number}") for number, row in enumerate(rows, start=1)]
    if not lines:
        raise UserError(f"{name}: there are no rows; give at least one")
    text = "\n".join(lines) + "\n"
    path = folder / f"{name}-{sha256(text.encode()).hexdigest()[:12]}.jsonl"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return path.absolute()


def _line(row: Mapping[str, Any] | str, where: str) -> str:
    if not isinstance(row, Mapping | str):
        raise UserError(f"{where}: a row is a mapping of fields, or the text of a prompt; got {type(row).__name__}")
    fields = {"prompt": row} if isinstance(row, str) else dict(row)
    try:
        return json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: JSON cannot hold it ({error}); give texts, numbers, lists and mappings") from error
