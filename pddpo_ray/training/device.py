"""Where a model computes, and every choice that follows from the kind of device: types, sizes of passes, recordings.

torch is imported only where a device is asked for, so that a plan can ask for sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

_LOADED_ON: ContextVar[str] = ContextVar("loaded_on", default="auto")
NARROW_FROM = 100_000_000
"""Parameters from which on `auto` is bfloat16 on a GPU; the step of a smaller model is bound by launches there."""
RECORDED = 1_500_000_000
"""Parameters up to which a GPU replays recorded passes: a larger model computes longer than the host needs to
launch it, and needs the memory that a recording would hold."""
CHUNK_BYTES, CHUNK_ROWS = 32 * 2**20, 2048
"""Logits that are made at a time in the packed layout: on a CPU float32 ones that its cache holds in part; on a GPU
those of the number of tokens at which a product of matrices is not bound by reading the head, but at most 1 GiB."""
PASS_TOKENS = {"cpu": 2048, "cuda": 65_536, "meta": 65_536}
"""Tokens of one forward pass without a backward pass, by kind of device."""


def device_for(device: str = "auto") -> torch.device:
    """`auto`: CUDA where torch sees a GPU."""
    import torch

    if device == "auto":
        device = _LOADED_ON.get()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


@contextmanager
def loaded_on(device: str) -> Iterator[None]:
    """Models loaded inside go to this device unless they name one."""
    before = _LOADED_ON.set(device)
    try:
        yield
    finally:
        _LOADED_ON.reset(before)


def release_cached_memory() -> None:
    """Gives memory that torch keeps for its next tensors to the other processes on this GPU."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def number_type(device: str, parameters: int) -> Literal["float32", "bfloat16"]:
    """The type in which a model computes where none is set."""
    return "bfloat16" if device == "cuda" and parameters >= NARROW_FROM else "float32"


def records_passes(device: str, parameters: int) -> bool:
    """Whether passes of packed texts are recorded and replayed: where the host would hold up the device."""
    return device == "cuda" and parameters <= RECORDED


def compiles_layers(device: str, parameters: int) -> bool:
    """Whether layers are compiled if nobody says: on a GPU, where passes are not recorded."""
    return device == "cuda" and parameters > RECORDED


def attends_ragged(device: str, dtype: torch.dtype) -> bool:
    """Whether attention over segments of any length is tried: flash kernels, which a GPU has for narrow types."""
    return device == "cuda" and dtype.itemsize == 2


def chunk_rows(vocabulary: int, device: str) -> int:
    """Tokens whose logits make one chunk."""
    if device == "cpu":
        return max(16, CHUNK_BYTES // (4 * vocabulary))
    return min(CHUNK_ROWS, 2**30 // (4 * vocabulary))
