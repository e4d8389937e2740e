"""`pddpo train --annotate --simulate N`: the annotation page beside a run, and simulated people who use it.

Both are processes of their own, `pddpo annotate` and `pddpo simulate-annotators`, so what holds here holds when they
are started by hand on other machines. They wait for the run to begin, come back when they break, and end with it.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pddpo_ray.config import Config
from pddpo_ray.errors import UserError
from pddpo_ray.registry import command

logger = logging.getLogger("pddpo_ray.crowd")

WATCH_S = 0.5
ENOUGH_STARTS = 5
"""How often a helper is started before it is given up."""
GRACE_S = 10.0


@contextmanager
def crowd_beside(config: Config, run_dir: Path, *, port: int, people: int, error: float) -> Iterator[str]:
    """Serves the page, and lets `people` simulated annotators answer, until the block ends. Yields the page's address.

    Raises UserError if the run asks nobody or the port is taken.
    """
    count = config.people_each
    if not count:
        raise UserError(f"--annotate: this run takes its labels from {config.feedback.kind}; add feedback.kind=people")
    if 0 < people < count:
        raise UserError(
            f"--simulate {people}: every answer needs {count} labels by different people (labels_each):"
            f" simulate {count} or more"
        )
    _demand_free(port)
    url = f"http://127.0.0.1:{port}"
    run = ["--run", str(run_dir), "--wait", *(["--journal", config.journal] if config.journal else [])]
    commands = {"annotate": ["annotate", *run, "--port", str(port)]}
    if people:
        command("simulate-annotators")
        options = ["--people", str(people), "--error", str(error), "--seed", str(config.seed)]
        commands["simulate-annotators"] = ["simulate-annotators", *run, "--url", url, *options]
    helpers = [_Helper(name, words, run_dir / f"{name}.log") for name, words in commands.items()]
    try:
        yield url
    finally:
        for helper in helpers:
            helper.end()


def _demand_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(
                f"port {port} is taken ({error.strerror}): name another one with --annotate-port"
            ) from error


class _Helper:
    """One process beside the run, started again when it breaks; what it says goes into a file of the run folder."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self._name = name
        self._command = [sys.executable, "-m", "pddpo_ray", *arguments]
        self._log = log
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = threading.Thread(target=self._watch, name=f"watch {name}", daemon=True)
        self._watcher.start()

    def end(self) -> None:
        self._ending.set()
        self._watcher.join()

    def _watch(self) -> None:
        for start in range(ENOUGH_STARTS):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            while self._process.poll() is None:
                if self._ending.wait(WATCH_S):
                    _stop(self._process)
                    return
            if self._ending.is_set():
                return
            logger.warning("%s ended with exit code %d: see %s", self._name, self._process.returncode, self._log)
            time.sleep(WATCH_S * 2**start)
        logger.error("%s broke %d times; the run waits for labels: start it by hand", self._name, ENOUGH_STARTS)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
