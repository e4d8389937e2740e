"""Runs of recipes in one process, each made once and read by every test that changes nothing of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pddpo_ray.config import Config
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.storage.whole_files import RESULT


class FinishedRuns:
    """The session fixture `finished_runs`. Folders are called `run`, like the runs in them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, Path] = {}

    def folder(self, config: Config) -> Path:
        """To be read alone; a test that changes something works on a `copy`."""
        key = config.model_dump_json()
        if key not in self._made:
            folder = self._root / str(len(self._made)) / "run"
            run_recipe(config, folder)
            self._made[key] = folder
        return self._made[key]

    def result(self, config: Config) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder(config) / RESULT).read_text(encoding="utf-8"))
        return found

    def copy(self, config: Config, folder: Path) -> Path:
        return Path(shutil.copytree(self.folder(config), folder))
