"""A recipe from Python, whose data may be rows in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pddpo_ray.config import Config, load
from pddpo_ray.data.files.rows_on_disk import kept


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
    told = [
        f"{key}={json.dumps([str(kept(given, Path(keep).expanduser(), key))])}" for key, given in (rows or {}).items()
    ]
    return load(recipe, [*overrides, *told])
