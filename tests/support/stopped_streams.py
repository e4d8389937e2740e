"""Clients that stream from an endpoint while it is asked to stop or is replaced."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx

from tests.support.served_process import Served

STREAMS = 8
ENDS = {"whole", "refused", "closed"}
"""How a request may end: with all that it asked for, with 503 and `Retry-After`, at a port where nobody listens."""


@contextmanager
def streaming(url: str, key: str, prompt: list[int], tokens: int) -> Iterator[Counter[str]]:
    """Eight clients, each with one stream of `tokens` after the other; inside the block each has had a whole one. Those
    under way at its end are read to theirs. Yields how streams ended."""
    ends: Counter[str] = Counter()
    over = threading.Event()
    asked = {"model": "round-1", "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    headers = {"authorization": f"Bearer {key}"}

    def client() -> None:
        while not over.is_set():
            begun = False
            try:
                with httpx.stream("POST", f"{url}/v1/completions", json=asked, headers=headers, timeout=120) as reply:
                    begun = True
                    text = reply.read().decode()
            except httpx.TransportError as error:
                ends[f"cut: {error!r}" if begun else "closed"] += 1
                over.wait(0.2)
            else:
                refused = reply.status_code == 503 and "retry-after" in reply.headers
                whole = reply.status_code == 200 and text.endswith("data: [DONE]\n\n") and '"error"' not in text
                ends["refused" if refused else "whole" if whole else f"{reply.status_code}: {text[:200]}"] += 1
                over.wait(0.2 if refused else 0.0)

    with ThreadPoolExecutor(STREAMS) as pool:
        clients = [pool.submit(client) for _ in range(STREAMS)]
        try:
            while ends["whole"] < STREAMS and not any(one.done() for one in clients):
                time.sleep(0.05)
            yield ends
        finally:
            over.set()
        for one in clients:
            one.result()


def terminate(endpoint: Served) -> None:
    """SIGTERM."""
    endpoint.process.terminate()


def stopped_under_streams(
    endpoint: Served,
    key: str,
    prompt: list[int],
    stop: Callable[[Served], None] = terminate,
    *,
    tokens: int = 24,
    after_s: float = 0.0,
) -> Counter[str]:
    """`stop` while clients stream, `after_s` after each had a whole answer: how their requests ended."""
    with streaming(endpoint.url, key, prompt, tokens) as ends:
        time.sleep(after_s)
        stop(endpoint)
        assert endpoint.process.wait(timeout=180) == 0
    return ends
