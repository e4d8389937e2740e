"""Trackers: a failing one ends no run, and W&B and MLflow keep what they are told, through their own libraries."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from pddpo_ray.driver.run import RoundFinished
from pddpo_ray.report.trackers.opening import Told

ROOT = Path(__file__).parents[3]
SMALL = (
    "rounds=2", "feedback.responses=16", "limits.cost.labels_each=4", "offline.pairs=64", "offline.compare_rounds=0",
    "report.html=false", "report.tensorboard=false", "report.trackers={wandb: {}, mlflow: {}}",
)  # fmt: skip


class Failing:
    def __init__(self) -> None:
        self.told: list[int] = []

    def write_round(self, round_: int, metrics: Mapping[str, float]) -> None:
        self.told.append(round_)
        raise RuntimeError("no such project")

    def close(self) -> None:
        raise AssertionError("it was given up")


def test_a_tracker_that_fails_says_so_once_and_is_told_no_more(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing()
    told = Told("mine", failing, "run")
    with caplog.at_level(logging.WARNING):
        for number in (1, 2):
            told(RoundFinished("run", number, 2, {"dual/multiplier": 0.5}))
        told.close()
    assert failing.told == [1]
    assert caplog.messages == [
        "tracker mine failed in round 1 and gets no further numbers: RuntimeError: no such project"
    ]


@pytest.mark.full
def test_wandb_and_mlflow_keep_every_rounds_multiplier(tmp_path: Path) -> None:
    """In an environment of its own, beside the project's packages, whose versions neither library decides."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "own")], check=True, timeout=120)
    python = str(tmp_path / "own" / "bin" / "python")
    (site,) = (tmp_path / "own" / "lib").glob("python3*/site-packages")
    (site / "beside.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "wandb>=0.25",
        "mlflow-skinny>=3.1,<4",
    ]
    subprocess.run(install, check=True, timeout=600, capture_output=True)
    done = subprocess.run(
        [python, "-m", "pddpo_ray", "train", "tabular", "--run", "run", *SMALL],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lab'}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    database = sqlite3.connect(tmp_path / "run" / "mlflow.sqlite")
    kept = database.execute("select step, value from metrics where key = 'dual/multiplier' order by step").fetchall()
    database.close()
    assert [step for step, _ in kept] == [1, 2]
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    written = file.read_bytes()  # records of JSON values, not compressed
    assert b"dual/multiplier" in written
    assert [value for _, value in kept if repr(value).encode() not in written] == []
