"""A rollout and an eviction under load, for real: no stream is cut, nobody is refused without a time to wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stopped_streams import ENDS, STREAMS

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def test_neither_a_new_version_nor_a_pods_end_cuts_a_stream(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.serve.rollout_story", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told["ends"]) <= ENDS - {"closed"}, told
    assert told["after"] > STREAMS, "some from beginning to end after it"
    assert told["old"] == 0
    assert (told["preStop"], told["refuses"]) == (0, 503)
    assert set(told["evicted"]) == {"whole", "refused"}, told
