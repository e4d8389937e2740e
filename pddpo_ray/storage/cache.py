"""Models that are made once and kept beside the runs: where, and how two runs share one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pddpo_ray.storage.whole_files import written_aside


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` unless it is there already. Two runs that start together never read half of it."""
    if folder.exists():
        return folder
    with written_aside(folder) as staging:
        staging.mkdir()
        make(staging)
    return folder


def cache_folder(configured: str | None = None) -> Path:
    """Where made and fetched models are kept: as configured, else `$PDDPO_CACHE`, else `~/.cache/pddpo_ray`."""
    return Path(configured or os.environ.get("PDDPO_CACHE") or "~/.cache/pddpo_ray").expanduser()
