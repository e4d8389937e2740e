"""What registered studies share: what was registered, results that are kept as they finish, and the command."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
Results = dict[str, Any]


@cache
def registration(name: str) -> Mapping[str, Any]:
    """What was registered in NAME/registered.yaml."""
    found: Mapping[str, Any] = yaml.safe_load((FOLDER / name / "registered.yaml").read_text())
    return found


def seeds_between(ends: Sequence[int]) -> range:
    return range(ends[0], ends[1] + 1)


def known(out: Path) -> Results:
    """{world: {arm: run}}, as far as they are finished."""
    found: Results = json.loads(out.read_text()) if out.exists() else {}
    return found


def keep(out: Path, key: str, runs: Mapping[str, Any]) -> None:
    """Adds runs of a world to the file, all at once: a reader sees the old file or the new one."""
    with _alone_in(out.parent):
        results = known(out)  # now: another process may have written since the caller looked
        results[key] = results.get(key, {}) | dict(runs)
        lines = ",\n".join(f'"{key}": {json.dumps(results[key])}' for key in sorted(results))
        aside = out.with_suffix(f".{os.getpid()}")
        aside.write_text("{\n" + lines + "\n}\n")
        aside.replace(out)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Other processes of this machine wait before they write results into the folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def command(about: str, out: Path, run: Callable[..., None], table: Callable[[Results], str], **folders: Path) -> None:
    """The command of a study that is run and shown. `folders` are further options, which `run` gets by name."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--out", type=Path, default=out)
    for name, folder in folders.items():
        parser.add_argument(f"--{name}", type=Path, default=folder, help=f"default: {folder}")
    asked = parser.parse_args()
    if asked.what == "run":
        run(asked.out, **{name: getattr(asked, name) for name in folders})
    else:
        print(table(known(asked.out)))
