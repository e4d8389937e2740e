"""A recipe from Python, whose data may be rows in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pddpo_ray.config import Config, load
from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import write_whole


def kept(rows: Iterable[Mapping[str, Any] | str], folder: Path, name: str) -> Path:
    """Writes rows to `folder/NAME-HASH.jsonl`, hashed by content; a row that is a text is a prompt.

    Raises UserError if there are no rows, or for a row (by number) that JSON cannot hold.
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


def load_recipe(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    rows: Mapping[str, Iterable[Mapping[str, Any] | str]] | None = None,
    keep: str | Path = "runs/rows",
) -> Config:
    """A shipped recipe (by name) or a recipe file, with overrides, checked. -> what `run` takes

    `rows` are data in memory, lists or `datasets.Dataset`, by the key that names their files: {"data.helpful": pairs,
    "data.harmless": more, "data.prompts": ["How do I clean a burnt pan?"], "prompts.red_team.files": asked}. They are
    kept as files in `keep`, one for each content, since a resumed run reads them again.

    Raises UserError for a key that the recipe has not, with the nearest one, and for what `pddpo train` refuses.
    """
    settings = [
        f"{key}={json.dumps([str(kept(table, Path(keep).expanduser(), key))])}" for key, table in (rows or {}).items()
    ]
    return load(recipe, [*overrides, *settings])
