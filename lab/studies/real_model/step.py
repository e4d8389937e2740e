"""A command of `pddpo` in the experiment on a real model: run once, continued where it was killed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

REFERENCE = "reference"


@dataclass(frozen=True)
class Step:
    """One command of `pddpo`, and the file that is there once it is done."""

    of: str
    words: list[str]
    done: Path
    begun: Path | None = None
    """Where this is there and `done` is not, the command continues with --resume."""
    late: Callable[[], list[str]] = list
    """Further words, and files that the command reads: made from the results of the steps before it."""
    printed: bool = False
    """Whether `done` is what the command prints."""
    ends: tuple[int, ...] = field(default=(0,))
    """Exit codes of a command that has done its work: a limit that is rejected is an answer too."""


def do(step: Step) -> None:
    """Runs the command unless its result is there. Ends the program with its exit code where it fails."""
    if step.done.is_file():
        print(f"done: {step.done}", flush=True)
        return
    step.done.parent.mkdir(parents=True, exist_ok=True)
    resume = ["--resume"] if step.begun is not None and step.begun.exists() else []
    words = [*step.words, *step.late(), *resume]
    print(f"$ pddpo {shlex.join(words)}", flush=True)
    command = [sys.executable, "-m", "pddpo_ray", *words]
    ended = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE if step.printed else None)
    if ended.returncode not in step.ends:
        raise SystemExit(ended.returncode)
    if step.printed:
        step.done.write_text(ended.stdout)


def answers_of(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    """By set and prompt, the first answer of each model."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for line in (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name = Path(row["set"]).name.partition(".")[0]
        found.setdefault((name, row["prompt"]), {}).setdefault(row["model"], row["answer"])
    return found
