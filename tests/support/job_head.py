"""A Ray head that jobs are submitted to, with token authentication: own ports, own folder, ended by its process ids."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from pddpo_ray.storage.whole_files import write_secret
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Head:
    """A running cluster's dashboard and the environment that may use it."""

    address: str
    environment: dict[str, str]


@contextmanager
def running_head() -> Iterator[Head]:
    with tempfile.TemporaryDirectory(prefix="ray-") as temporary:
        token = write_secret(Path(temporary) / "token", secrets.token_hex(32))
        dashboard = free_port()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_worker_niceness": "0",
        }
        command = [
            str(Path(sys.executable).parent / "ray"),
            *["start", "--head", "--block", "--num-cpus=4", "--disable-usage-stats"],
            *[f"--port={free_port()}", f"--ray-client-server-port={free_port()}", f"--dashboard-port={dashboard}"],
            *[f"--dashboard-agent-listen-port={free_port()}", "--min-worker-port=0", "--max-worker-port=0"],
            *["--dashboard-host=127.0.0.1", f"--temp-dir={temporary}/r"],
        ]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = f"http://127.0.0.1:{dashboard}"
            wait_for_dashboard(address)
            yield Head(address, environment)
        finally:
            family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
            for member in family:
                member.kill()
            process.wait(timeout=20)
            psutil.wait_procs(family, timeout=20)


def wait_for_dashboard(address: str) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=2)
            return
        except urllib.error.HTTPError:
            return  # it answers, and asks for the token
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"no dashboard at {address}")


def pddpo_submit(head: Head, recipe: str, run_dir: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    """`pddpo submit` of a recipe, followed to its end, said in JSON."""
    command = [
        *[sys.executable, "-m", "pddpo_ray", "submit", recipe, "report.html=false", "offline.compare_rounds=0"],
        *["--address", head.address, "--run", str(run_dir), "--json", *extra],
    ]
    return subprocess.run(
        command, env=head.environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
