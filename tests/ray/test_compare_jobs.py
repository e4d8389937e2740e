"""`pddpo compare` with its units as Ray tasks: the same numbers as one by one in this process."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.full]

ROOT = Path(__file__).parents[2]
EXACT = ("arm", "seed", "gap_last", "f_last", "g_last", "multiplier", "pairs", "labels", "tokens")


def numbers(folder: Path, jobs: int) -> list[tuple[str, ...]]:
    command = [
        *[sys.executable, "-m", "pddpo_ray", "compare", "tabular", "rounds=2", "--only", "o-pd-dpo,pd-dpo"],
        *["--seeds", "0,1", "--jobs", str(jobs), "--runs", str(folder)],
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "compare.html").exists()
    with (folder / "compare.csv").open(encoding="utf-8") as file:
        return sorted(tuple(row[key] for key in EXACT) for row in csv.DictReader(file))


def test_units_as_ray_tasks_compute_what_one_process_computes(tmp_path: Path) -> None:
    here, over_ray = numbers(tmp_path / "here", 0), numbers(tmp_path / "over-ray", 2)
    assert {row[1] for row in here} == {"0", "1"}
    assert len(here) == 4
    assert over_ray == here
