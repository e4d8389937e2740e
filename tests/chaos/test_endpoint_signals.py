"""Every way to stop under eight streams: none is cut, and nothing is accepted after it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.served_process import Served, served
from tests.support.served_run import PROMPT, SAFE, make_run
from tests.support.stopped_streams import ENDS, STREAMS, stopped_under_streams, terminate
from tests.support.tiny_language_model import tiny_llama

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.vllm, pytest.mark.timeout(1200)]

TOKENS = 3000
"""Of each answer: eight streams of so many last over 20 seconds on two cores."""


@pytest.mark.parametrize("seed", range(20))
def test_a_signal_at_any_moment_cuts_no_stream(tmp_path: Path, seed: int) -> None:
    stopped(tmp_path, random.Random(seed).uniform(0.0, 20.0), terminate)


def test_ctrl_c_in_a_terminal_cuts_no_stream(tmp_path: Path) -> None:
    """The terminal gives SIGINT to the whole group: Ray's processes and vLLM's too."""
    stopped(tmp_path, 1.0, lambda endpoint: os.killpg(endpoint.process.pid, signal.SIGINT), under=("setsid",))


def test_docker_stop_cuts_no_stream(tmp_path: Path) -> None:
    """SIGTERM to the first process of a container's process namespace."""
    if os.geteuid() != 0:
        pytest.skip("a process namespace needs root")

    def stop(endpoint: Served) -> None:
        (first,) = psutil.Process(endpoint.process.pid).children()
        first.terminate()

    stopped(tmp_path, 1.0, stop, under=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))


def stopped(tmp_path: Path, moment: float, stop: Callable[[Served], None], under: tuple[str, ...] = ()) -> None:
    model = partial(tiny_llama, context=2 * TOKENS)
    run = make_run(tmp_path / "demo", (SAFE,), max_model_len=2 * TOKENS, model=model)
    try:
        with served(run.folder, tmp_path / "serve.log", under=under) as endpoint:
            key = (run.folder / "serve-key").read_text().strip()
            ends = stopped_under_streams(endpoint, key, list(PROMPT.token_ids), stop, tokens=TOKENS, after_s=moment)
    finally:
        run.close()
    assert ends["whole"] >= STREAMS
    assert set(ends) <= ENDS, (moment, ends)
