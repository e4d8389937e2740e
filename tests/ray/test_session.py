"""Sessions of this machine: a start that is lost, and who can reach them.

The sessions are this file's own: how they start, and who reaches them, is what is tested.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from actors import session

pytestmark = pytest.mark.ray


@pytest.mark.full
def test_a_start_that_fails_is_tried_again_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    start, starts = ray.init, []

    def lost_once(**options: Any) -> Any:
        starts.append(start(**options))
        if len(starts) == 1:
            raise RuntimeError("its processes are there, but nobody is connected")
        return starts[-1]

    monkeypatch.setattr(ray, "init", lost_once)
    with session.ray_session("pddpo-second-start", cpus=1):
        assert len(starts) == 2
        assert ray.get(ray.remote(lambda: 3).remote()) == 3
        names = [process.name() for process in psutil.Process().children(recursive=True)]
        assert names.count("gcs_server") == 1, "what the first start left is gone"
        commands = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
        assert not any("ray-dashboard-" in command for command in commands), "no run asks the dashboard"


LISTENING = """
import psutil, ray
from actors.session import ray_session

@ray.remote
def one() -> int:
    return 1

with ray_session("listening", cpus=1):
    assert ray.get(one.remote()) == 1
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for connection in process.net_connections(kind="inet"):
            if connection.status == "LISTEN":
                print("LISTENS", process.name(), connection.laddr.ip)
"""


def test_a_session_of_this_machine_listens_on_loopback_alone_and_its_token_is_its_owners(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    token = tmp_path / ".ray" / "auth_token"
    token.write_text("0" * 64)
    token.chmod(0o644)
    environment = {**os.environ, "HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", LISTENING], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    listening = [line.split() for line in ended.stdout.splitlines() if line.startswith("LISTENS")]
    assert len(listening) >= 5
    assert {address for *_, address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
