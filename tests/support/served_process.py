"""`pddpo serve` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port

START_S = 420


@dataclass(frozen=True)
class Served:
    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def served(run: Path, log: Path, *options: str, under: Sequence[str] = ()) -> Iterator[Served]:
    """The run's endpoint, which is asked to stop in the end and does. `under`: a command that starts it."""
    port = free_port()
    command = [*under, sys.executable, "-m", "pddpo_ray", "serve", str(run), "--port", str(port), *options]
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_S
        while "ready: http" not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        yield Served(f"http://127.0.0.1:{port}", server)
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=120) == 0
    finally:
        server.kill()
