"""The small text-world suite as a whole, by its command: every method, both tables, a sweep, page and CSV."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pddpo_lab.compare.suite import load_suite

ROOT = Path(__file__).parents[3]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pddpo_ray", "compare", "text-small", "--jobs", "0", "--runs", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.mark.full
def test_the_small_suite_runs_every_method_and_is_read_back_the_second_time(tmp_path: Path) -> None:
    done = run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    suite = load_suite("text-small")
    with (tmp_path / "compare.csv").open(encoding="utf-8") as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    assert set(rows) == set(suite.arms)
    for name, row in rows.items():
        for key in ("f_last", "g_last", "gap_last"):
            assert math.isfinite(float(row[key])), (name, key)
        assert int(row["optimiser_steps"]) > 0, name
    assert int(rows["sacpo.equal"]["pairs"]) > int(rows["sacpo"]["pairs"])
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    for arm in suite.arms.values():
        assert arm.label in page
    again = run(tmp_path, "--json")
    assert again.returncode == 0, again.stderr[-3000:]
    assert json.loads(again.stdout) == told
