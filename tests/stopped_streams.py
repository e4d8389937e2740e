"""Clients that stream from an endpoint while it is asked to stop."""

from __future__ import annotations

import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.served_process import Served

STREAMS = 8


def stopped_under_streams(
    endpoint: Served, key: str, prompt: list[int], *, tokens: int = 24, after_s: float = 0.0
) -> Counter[str]:
    """SIGTERM while clients stream one answer of `tokens` after the other, `after_s` after each had a whole one: how
    their requests ended."""
    ends: Counter[str] = Counter()
    asked = {"model": "round-1", "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    headers = {"authorization": f"Bearer {key}"}

    def client() -> None:
        while not ends["closed"]:
            begun = False
            try:
                with httpx.stream("POST", f"{endpoint.url}/v1/completions", json=asked, headers=headers) as reply:
                    begun = True
                    text = reply.read().decode()
            except httpx.TransportError as error:
                ends[f"cut: {error!r}" if begun else "closed"] += 1
            else:
                refused = reply.status_code == 503 and "retry-after" in reply.headers
                whole = reply.status_code == 200 and text.endswith("data: [DONE]\n\n") and '"error"' not in text
                ends["refused" if refused else "whole" if whole else f"{reply.status_code}: {text[:200]}"] += 1
                time.sleep(0.2 if refused else 0.0)

    with ThreadPoolExecutor(STREAMS) as pool:
        clients = [pool.submit(client) for _ in range(STREAMS)]
        while ends["whole"] < STREAMS and not any(one.done() for one in clients):
            time.sleep(0.05)
        time.sleep(after_s)
        endpoint.process.send_signal(signal.SIGTERM)
        assert endpoint.process.wait(timeout=180) == 0
        ends["closed"] += 1
        for one in clients:
            one.result()
    return ends
