"""Benchmarks with an engine or on a GPU run in a process of their own: vLLM changes its process for good."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

Found = TypeVar("Found")


def alone(benchmark: Callable[[], Found]) -> Found:
    """What a picklable benchmark finds in a fresh process, which ends with it and gives its memory back."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(benchmark).result()
