"""Benchmarks with an engine run in a process of their own: vLLM changes its process for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from bench.ratio import Ratio


def alone(benchmark: Callable[[], Sequence[Ratio]]) -> Sequence[Ratio]:
    """What a picklable benchmark finds in a fresh process, which ends with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(benchmark).result()
