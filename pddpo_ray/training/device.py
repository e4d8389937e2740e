"""Where a model computes, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_LOADED_ON: ContextVar[str] = ContextVar("loaded_on", default="auto")


def device_for(device: str = "auto") -> torch.device:
    """`auto`: CUDA where torch sees a GPU."""
    if device == "auto":
        device = _LOADED_ON.get()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


@contextmanager
def loaded_on(device: str) -> Iterator[None]:
    """What is loaded inside goes to this device, where it names none itself."""
    before = _LOADED_ON.set(device)
    try:
        yield
    finally:
        _LOADED_ON.reset(before)


def release_cached_memory() -> None:
    """Gives memory that torch keeps for its next tensors to the other processes on this GPU."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
