"""docs/tutorials/on-a-cluster.md from its page: planned, submitted, followed and gone on with, on one machine.

The page's `ray start` and `ray stop` are not run: the cluster here has ports of its own, and `ray stop` would end every
cluster of the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.job_head import ROOT, Head, running_head
from tests.support.tutorial_page import commands, ran, ran_here

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.full]
PAGE = "tutorials/on-a-cluster.md"
ADDRESS, RUN = "http://127.0.0.1:8265", "/tmp/pddpo-runs/first"


def here(words: list[str], head: Head, run: Path) -> list[str]:
    """The page's words with this cluster's address and a run folder of the test."""
    return [word.replace(ADDRESS, head.address).replace(RUN, str(run)) for word in words]


@pytest.mark.full
def test_a_run_is_submitted_followed_and_gone_on_with(tmp_path: Path) -> None:
    run = tmp_path / "first"
    with running_head() as head:
        plan, travels, submit, logs, go_on, report = (here(words, head, run) for words in commands(PAGE))
        assert "resources (ray" in ran_here(ROOT, plan)
        assert "entrypoint: python -m pddpo_ray train" in ran(ROOT, travels, environment=head.environment)
        assert not run.exists()
        assert "round 3/3" in ran(ROOT, submit, environment=head.environment)
        assert "round 3/3" in ran(ROOT, logs, environment=head.environment)
        assert "round 4/4" in ran(ROOT, go_on, environment=head.environment)
    assert json.loads((run / "result.json").read_text())["rounds"] == 4
    (run / "report.html").unlink(missing_ok=True)
    ran_here(tmp_path, report)
    assert (run / "report.html").is_file()


def test_the_token_of_the_page_is_made(tmp_path: Path) -> None:
    words = next(one for one in commands(PAGE, "ray") if one[1] == "get-auth-token")
    program = Path(sys.executable).parent / "ray"
    environment = {"HOME": str(tmp_path), "PATH": str(program.parent), "RAY_AUTH_MODE": "token"}
    done = subprocess.run(
        [str(program), *words[1:]], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (token,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert token.read_text().strip() == done.stdout.strip()
