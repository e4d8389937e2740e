"""The example of docs/benchmark.md: a world exported, a model trained on it by TRL, and its exact score."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tutorial_page import ran_here

ROOT = Path(__file__).parents[3]
STEPS, LEARNING_RATE = 12, 1e-3


def documented() -> list[list[str]]:
    """The commands under "Export, train, score"."""
    page = (ROOT / "docs" / "benchmark.md").read_text("utf-8")
    block = page.split("## Export, train, score")[1].split("`examples/trl_dpo.py`")[0]
    return [shlex.split(line) for line in block.splitlines() if line.strip() and not line.startswith("```")]


def run_script(command: list[str], folder: Path) -> None:
    program = [sys.executable, *command[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.full
@pytest.mark.slow
def test_a_model_trained_by_trl_is_scored(tmp_path: Path) -> None:
    """Fewer steps, at a higher rate. DPO on pairs of harmlessness makes the policy cheaper, away from the reference."""
    export, train, score = documented()
    assert "trl_dpo" in train[2]
    ran_here(tmp_path, export)
    steps = train.index("--steps") + 1
    run_script([*train[:steps], str(STEPS), *train[steps + 1 :], "--learning-rate", str(LEARNING_RATE)], tmp_path)
    found = json.loads(ran_here(tmp_path, [*score, "--json"]))
    reference = found["points"]["reference"]
    assert reference["kl"] == 0.0
    for key in ("gap", "violation", "kl"):
        assert math.isfinite(found[key])
        assert abs(found[key] - reference[key]) > 0.01, key
    assert found["violation"] < reference["violation"] - 0.02
