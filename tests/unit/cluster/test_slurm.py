"""The Slurm script under a scheduler made of three small programs: `srun`, `scontrol` and Ray's `symmetric-run`.

The run is real and in one process. What Slurm does with signals, and how Ray comes up on several hosts, is not run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.traces import trace

ROOT = Path(__file__).parents[3]
SBATCH = ROOT / "deploy" / "slurm" / "pddpo.sbatch"
SMALL = ["feedback.responses=32", "limits.cost.labels_each=8", "offline.pairs=100", "offline.compare_rounds=0"]
PROGRAMS = {
    # a step: the command in a process group of its own, which forwards what it is told, as srun does
    "srun": "shift; setsid \"$@\" & step=$!; trap 'kill -TERM -- -$step' TERM; "
    "wait $step; code=$?; while kill -0 $step 2>/dev/null; do wait $step; code=$?; done; exit $code",
    "scontrol": 'case "$1" in show) echo localhost;; *) echo "$@" >> "$CALLS";; esac',
    # the cluster is not started, and the run stays in one process
    "python": f'exec {sys.executable} "$@"',
    "ray": 'while [ "$1" != -- ]; do shift; done; shift; args=(); for a in "$@"; do case "$a" in cluster.*) ;; '
    '*) args+=("$a");; esac; done; "${args[@]}"; exit $?',
}


@pytest.fixture
def scheduler(tmp_path: Path) -> dict[str, str]:
    """The environment of a job of the scheduler."""
    (tmp_path / "bin").mkdir()
    for name, body in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))},
        "HOME": str(tmp_path),
        "VENV": str(tmp_path),
        "CALLS": str(tmp_path / "calls"),
        "RUN": str(tmp_path / "run"),
        "PYTHONPATH": str(ROOT),
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CPUS_PER_TASK": "1",
    }


def job(environment: dict[str, str], *settings: str) -> subprocess.Popen[str]:
    arguments = ["tabular", *SMALL, "report.html=false", "dual.rule={kind: anytime}", *settings]
    return subprocess.Popen(
        ["bash", str(SBATCH), *arguments],
        env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.full
def test_the_early_signal_stops_the_run_in_good_order_and_the_job_is_queued_again(
    scheduler: dict[str, str], tmp_path: Path
) -> None:
    first = job(scheduler, "rounds=400")
    log, deadline = tmp_path / "run" / "train.log", time.monotonic() + 120
    while not (log.exists() and "round 1/" in log.read_text()):
        assert time.monotonic() < deadline
        assert first.poll() is None, first.stderr and first.stderr.read()
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)  # --signal=B: this shell alone
    _, err = first.communicate(timeout=110)
    assert first.returncode == 143, err
    assert "the time limit is near: the run stops and is queued again" in err
    assert (tmp_path / "calls").read_text() == "requeue 7\n"
    last = log.read_text().splitlines()[-1]
    assert last.endswith("was told to stop: --resume continues it, finished phases are kept")
    assert not (tmp_path / ".ray" / "slurm-7").exists(), "the token is gone with the job"

    done = len(trace(tmp_path / "run")["multipliers"])
    second = job(scheduler, "rounds=400")  # as Slurm starts a job again
    while len(trace(tmp_path / "run")["multipliers"]) <= done:
        assert second.poll() is None
        assert time.monotonic() < deadline + 120
        time.sleep(0.2)
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=110)
    assert second.returncode == 143


@pytest.mark.full
@pytest.mark.slow
def test_a_job_that_ends_by_itself_has_its_runs_exit_code_and_is_not_queued_again(
    scheduler: dict[str, str], tmp_path: Path
) -> None:
    done = job(scheduler, "rounds=1")
    _, err = done.communicate(timeout=110)
    assert done.returncode == 0, err
    refused = job(scheduler, "rounds=x")
    assert (refused.communicate(timeout=110)[1].count("\n"), refused.returncode) == (1, 2)
    assert not (tmp_path / "calls").exists()
