"""SIGTERM at random moments under eight streams: none is cut, and nothing is accepted after it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.served_process import served
from tests.served_run import PROMPT, SAFE, make_run
from tests.stopped_streams import STREAMS, stopped_under_streams

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.vllm, pytest.mark.timeout(1200)]

TOKENS = 100
"""As long as the tiny model's context allows."""


@pytest.mark.parametrize("seed", range(20))
def test_a_signal_at_any_moment_cuts_no_stream(tmp_path: Path, seed: int) -> None:
    run = make_run(tmp_path / "demo", (SAFE,))
    try:
        with served(run.folder, tmp_path / "serve.log") as endpoint:
            key = (run.folder / "serve-key").read_text().strip()
            moment = random.Random(seed).uniform(0.0, 10.0)
            ends = stopped_under_streams(endpoint, key, list(PROMPT.token_ids), tokens=TOKENS, after_s=moment)
    finally:
        run.close()
    assert ends["whole"] >= STREAMS
    assert set(ends) <= {"whole", "refused", "closed"}, (moment, ends)
