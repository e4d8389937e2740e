"""Clients that go on asking an endpoint while a process of it is killed, and what they and its readiness see."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import psutil

from tests.support.served_process import Served

CLIENTS = 12
CORE, PROXY = "VLLM::Engine", "ray::ProxyActor"
REPLICA, ENTRANCE = "ray::ServeReplica:pddpo-demo:Engine", "ray::ServeReplica:pddpo-demo:Entrance"
"""Names of an endpoint's processes: vLLM's own, Serve's HTTP proxy, the replica that drives vLLM, the entrance."""
FORKING = "deploy.serving.engines.warm_imports"
"""In the command of the process that forks engines; Ray's dashboard forks its parts from such a process too."""
GOOD, WAIT = "200", "503 with Retry-After"


@dataclass
class Recovery:
    """Seconds count from the kill. `cpu_s`: what the endpoint's processes used until the first good answer."""

    ends: Counter[str] = field(default_factory=Counter)
    """How requests ended."""
    unready_s: float = 0.0
    ready_s: float = 0.0
    answer_s: float = 0.0
    cpu_s: float = 0.0
    load: float = 0.0


def processes(root: int, name: str) -> list[psutil.Process]:
    """Those below the process `root` whose title or command contains this; vLLM's, titled or not: see `_forked`."""
    found = []
    for process in psutil.Process(root).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if name in _title(process) or (name == CORE and _forked(process)):
                found.append(process)
    return found


def _title(process: psutil.Process) -> str:
    return f"{process.name()} {' '.join(process.cmdline())}"


def _forked(process: psutil.Process) -> bool:
    """Whether this is an engine that the warm process forked; where a title cannot be set, both keep one command."""
    above = [FORKING in _title(one) for one in process.parents()[:2]]
    return above == [True, False]


def titles(root: int) -> str:
    """What runs below the process `root`, a line each."""
    lines = []
    for process in psutil.Process(root).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            lines.append(f"{process.ppid()} > {process.pid} {_title(process)[:160]}")
    return "\n".join(lines)


def cpu_seconds(endpoint: Served) -> dict[int, float]:
    """By process."""
    found = {}
    for process in psutil.Process(endpoint.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def killed_under_clients(endpoint: Served, key: str, prompt: list[int], name: str, *, limit_s: float = 240) -> Recovery:
    """Kills the process of this name under twelve clients that do as `Retry-After` says, until one is served again."""
    seen, over = Recovery(), threading.Event()
    headers = {"authorization": f"Bearer {key}"}
    asked = {"model": "round-1", "prompt": prompt, "max_tokens": 20, "ignore_eos": True}
    before: list[float] = []
    good: list[float] = []
    killed_at = [float("inf")]

    def client() -> None:
        with httpx.Client(headers=headers, timeout=180) as http:
            while not over.is_set():
                begun = time.monotonic()
                try:
                    reply = http.post(f"{endpoint.url}/v1/completions", json=asked)
                except httpx.TransportError as error:
                    seen.ends[type(error).__name__] += 1
                    over.wait(0.5)
                    continue
                if reply.status_code == 200:
                    (good if begun > killed_at[0] else before).append(time.monotonic())
                    seen.ends[GOOD] += 1
                elif reply.status_code == 503 and "retry-after" in reply.headers:
                    seen.ends[WAIT] += 1
                    over.wait(float(reply.headers["retry-after"]))
                else:
                    seen.ends[f"{reply.status_code}: {reply.text[:200]}"] += 1
                    over.wait(0.5)

    def readiness() -> None:
        with httpx.Client(timeout=60) as http:
            while not over.is_set():
                status = 0
                with suppress(httpx.TransportError):
                    status = http.get(f"{endpoint.url}/readyz").status_code
                now = time.monotonic() - killed_at[0]
                if now > 0 and status != 200 and not seen.unready_s:
                    seen.unready_s = now
                if now > 0 and status == 200 and seen.unready_s and not seen.ready_s:
                    seen.ready_s = now
                over.wait(0.1)

    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        running = [pool.submit(client) for _ in range(CLIENTS)] + [pool.submit(readiness)]
        try:
            deadline = time.monotonic() + limit_s
            while len(before) < 2 * CLIENTS:
                assert time.monotonic() < deadline, seen
                time.sleep(0.05)
            victims, used = processes(endpoint.process.pid, name), cpu_seconds(endpoint)
            assert victims, f"no process {name!r} in\n{titles(endpoint.process.pid)}"
            killed_at[0] = time.monotonic()
            for victim in victims:
                victim.kill()
            while not good or (seen.unready_s and not seen.ready_s):
                assert time.monotonic() < deadline, seen
                assert not any(one.done() for one in running)
                time.sleep(0.05)
                if good and not seen.cpu_s:
                    alive = cpu_seconds(endpoint)
                    seen.cpu_s = sum(seconds - used.get(pid, 0.0) for pid, seconds in alive.items())
                    seen.load = psutil.getloadavg()[0]
        finally:
            over.set()
        for one in running:
            one.result()
    seen.answer_s = good[0] - killed_at[0]
    return seen
