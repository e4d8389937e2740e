"""`ray job submit` on a local cluster with token authentication runs a recipe to its end.

The head is this file's own: jobs are submitted to a dashboard, in a process apart from the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.storage.whole_files import write_secret
from tests.support.job_head import ROOT, Head, pddpo_submit, running_head
from tests.support.ports import free_port

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with running_head() as running:
        yield running


def submit(head: Head, run_dir: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).parent / "ray"),
        *["job", "submit", f"--address={head.address}", "--working-dir", ".", "--"],
        *["python", "-m", "pddpo_ray", "train", "tabular", "rounds=2", "cluster.mode=ray", "report.html=false"],
        *["offline.compare_rounds=0", "--run", str(run_dir)],
    ]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.full
def test_a_submitted_job_runs_a_recipe_to_its_end(head: Head, tmp_path: Path) -> None:
    run_dir = tmp_path / "job"
    job = submit(head, run_dir, head.environment)
    assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-2000:]
    assert json.loads((run_dir / "result.json").read_text())["rounds"] == 2


@pytest.mark.full
def test_the_exit_code_of_a_submitted_run_is_its_own(head: Head, tmp_path: Path) -> None:
    """2, because a secret that was named is not on the node; Ray's own command would say 1."""
    done = pddpo_submit(head, "tabular", tmp_path / "secret", "rounds=2", "--secret", "NOWHERE_TO_BE_FOUND")
    assert done.returncode == 2, done.stderr[-3000:]
    assert "secret NOWHERE_TO_BE_FOUND is neither in the environment nor in" in done.stderr


def stopped(head: Head, run_dir: Path) -> str | None:
    """Who `pddpo stop` ended."""
    command = [sys.executable, "-m", "pddpo_ray", "stop", str(run_dir), "--address", head.address, "--json"]
    done = subprocess.run(command, env=head.environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    name: str | None = json.loads(done.stdout)["stopped"]
    return name


def next_round(run_dir: Path) -> int:
    """Of a run that may not have begun."""
    try:
        with open_folder(run_dir) as journal:
            return journal.next_round
    except UserError:
        return 0


@pytest.mark.full
def test_pddpo_stop_ends_a_job_in_mid_run(head: Head, tmp_path: Path) -> None:
    run_dir = tmp_path / "stopped"
    with ThreadPoolExecutor() as pool:
        followed = pool.submit(pddpo_submit, head, "tabular", run_dir, "rounds=400")
        deadline = time.monotonic() + 250
        while next_round(run_dir) < 3:
            assert time.monotonic() < deadline, "the job has not begun its third round"
            time.sleep(0.2)
        job = stopped(head, run_dir)
        done = followed.result()
    assert done.returncode == 143, done.stderr[-2000:]
    assert job == f"job {json.loads(done.stdout)['job']}"
    assert not (run_dir / "result.json").exists()
    assert stopped(head, run_dir) is None


def test_a_cluster_that_asks_for_a_token_or_is_not_there_is_one_line(head: Head, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("0" * 64)
    stranger = Head(head.address, {**head.environment, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "wrong")})
    nowhere = Head(f"http://127.0.0.1:{free_port()}", head.environment)
    for place, message in ((stranger, "it asks for a token"), (nowhere, "no Ray cluster answers there")):
        done = pddpo_submit(place, "tabular", tmp_path / "refused", "rounds=2")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr[-2000:]
        assert message in done.stderr


def test_without_the_token_nothing_is_accepted(head: Head, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("0" * 64)
    stranger = {**head.environment, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "wrong")}
    job = submit(head, tmp_path / "stranger", stranger)
    assert job.returncode != 0
    assert not (tmp_path / "stranger").exists()


def test_the_token_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    token = write_secret(tmp_path / "new" / "token", "a")
    assert write_secret(token, "b").read_text() == "b"
    assert token.stat().st_mode & 0o777 == 0o600
