"""A session of this machine that does not start is tried again; in the end it is one line, not Ray's traceback."""

from __future__ import annotations

import os
from typing import Any

import pytest
import ray

from actors.session import ray_session
from pddpo_ray.errors import RunError


def test_ray_that_does_not_start_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fail(**options: Any) -> None:
        tries.append(options)
        raise Exception("Failed to read raylet.err file:\n no such file")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    monkeypatch.setattr(ray, "init", fail)
    said = r"did not start on this machine, 3 times .*raylet.err file: no such file\): .* give the command again"
    with pytest.raises(RunError, match=said), ray_session("test"):
        pass
    assert len(tries) == 3
    assert not any(options["include_dashboard"] for options in tries), "11 processes that no run asks"
    assert "RAY_worker_niceness" not in os.environ
