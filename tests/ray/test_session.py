"""A session whose first start fails for real: somebody else has the port of its dashboard."""

from __future__ import annotations

import os
import socket

import psutil
import pytest
import ray

from actors import session

pytestmark = pytest.mark.ray


def test_a_start_that_fails_is_tried_again_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_worker_niceness"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1], session.free_port()]
        monkeypatch.setattr(session, "free_port", lambda: ports.pop(0))
        with session.ray_session("pddpo-second-start", cpus=1):
            assert ports == []
            assert ray.get(ray.remote(lambda: 3).remote()) == 3
            names = [process.name() for process in psutil.Process().children(recursive=True)]
            assert names.count("gcs_server") == 1, "what the first start left is gone"
