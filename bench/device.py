"""Wall seconds and memory of a call on a CUDA device or, so that every benchmark can be tried, on a CPU."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

GIB = 2**30


def wall_clock(device: str) -> Callable[[Callable[[], object]], float]:
    """A clock that waits for the device before it looks, at both ends: kernels run behind the call that starts them."""

    def seconds(call: Callable[[], object]) -> float:
        gc.collect()
        wait_for(device)
        began = time.perf_counter()
        call()
        wait_for(device)
        return time.perf_counter() - began

    return seconds


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def allocated_at_most(call: Callable[[], object], device: str) -> float:
    """The largest sum of bytes in tensors that the call allocates and that are alive at once."""
    gc.collect()
    if device == "cuda":
        return _on_cuda(call)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    live = most = 0
    results = recorded.profiler.kineto_results  # type: ignore[union-attr]
    events = [event for event in results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return float(most)


def _on_cuda(call: Callable[[], object]) -> float:
    # what is there before the call, models of the other side among it, is not the call's
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before)


def bytes_of(*models: torch.nn.Module) -> float:
    """Bytes of the weights of all of them."""
    return float(sum(tensor.numel() * tensor.element_size() for model in models for tensor in model.parameters()))
