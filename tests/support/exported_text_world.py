"""The demo's text world, exported once for all tests of a file: its reference comes from the cache, or is trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from pddpo_ray.cli.main import app


@dataclass(frozen=True)
class Exported:
    folder: Path
    truth: dict[str, Any]

    @property
    def reference(self) -> Path:
        return self.folder / "reference"

    def table(self, key: str) -> np.ndarray:
        return np.array(self.truth[key])

    def lines(self, name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (self.folder / name).read_text("utf-8").splitlines()]


def export_to(folder: Path, *options: str) -> Exported:
    done = CliRunner().invoke(app, ["world", "export", "--to", str(folder), "--with-truth", *options])
    assert done.exit_code == 0, done.output
    return Exported(folder, json.loads((folder / "truth.json").read_text("utf-8")))
