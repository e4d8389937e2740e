"""Run by test_rollout.py in a process of its own: an endpoint is deployed anew under eight streams. Prints one line.

The session is this file's own: it is a process of its own, in which Serve replaces replicas.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve

from actors.session import ray_session
from deploy.serving.deployment import build
from deploy.serving.settings import ServeArgs
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.keys import ApiKeys, Scope
from tests.support.killed_processes import CORE, ENTRANCE, processes
from tests.support.ports import free_port
from tests.support.served_run import PROMPT, SAFE, make_run
from tests.support.stopped_streams import STREAMS, streaming
from tests.support.tiny_language_model import tiny_llama

NAME, TOKENS = "pddpo-demo", 3000


def main(folder: Path) -> None:
    model = partial(tiny_llama, context=2 * TOKENS)
    run = make_run(folder / "demo", (SAFE,), max_model_len=2 * TOKENS, model=model)
    limits: dict[str, Any] = {"requests_per_minute": 6000.0, "tokens_per_minute": 2_000_000.0}
    _, key = ApiKeys(Store(run.journal.engine, "demo")).create("streams", Scope.INSPECT, **limits)
    with ray_session("rollout"):
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        deploy(run.folder)
        before = living()
        url = f"http://127.0.0.1:{port}"
        with streaming(url, key, list(PROMPT.token_ids), TOKENS) as ends:
            deploy(run.folder)
            taken_over_at = ends["whole"]
            deadline = time.monotonic() + 120
            while ends["whole"] < taken_over_at + STREAMS and time.monotonic() < deadline:
                time.sleep(0.1)
        # An old replica ends a moment after its last answer.
        while before & living() and time.monotonic() < deadline:
            time.sleep(0.5)
        told: dict[str, Any] = {
            "ends": Counter(ends),
            "after": ends["whole"] - taken_over_at,
            "old": len(before & living()),
        }
        with streaming(url, key, list(PROMPT.token_ids), TOKENS) as evicted:
            # What a pod's preStop does; this process is the cluster that goes on meanwhile.
            command = [sys.executable, "-m", "deploy.serving.stopping", NAME, "120"]
            address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
            done = subprocess.run(command, env={**os.environ, **address}, timeout=150, check=False)
            told["refuses"] = httpx.get(f"{url}/readyz", timeout=60).status_code
            time.sleep(1)
        told |= {"evicted": evicted, "preStop": done.returncode}
        serve.shutdown()
    run.close()
    print(json.dumps(told))


def deploy(folder: Path) -> None:
    """A version of its own each time, as for Serve every deployment is whose code may have changed."""
    entrance = serve.run(build(ServeArgs(run=str(folder))), name=NAME)
    while not entrance.ready.remote().result():
        time.sleep(0.2)


def living() -> set[int]:
    return {one.pid for name in (CORE, ENTRANCE) for one in processes(os.getpid(), name)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
