"""Passes over pairs as CUDA graphs: the kernels of a shape are recorded once and replayed in one launch.

The host needs 5 to 30 microseconds for each of the thousands of kernels of a pass, a small model less time to compute
them: its step is bound by launches. A replay has one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pddpo_ray.errors import one_line
from pddpo_ray.training.batches import flat_of, moved, over
from pddpo_ray.training.fit import PairPass
from pddpo_ray.training.passes.buckets import PassSizes, filled

logger = logging.getLogger("pddpo_ray.training")
Run = Callable[[PairPass], Tensor]
"""Forward and backward pass of what lies on the device; gradients are added to tensors that exist already."""
MOST_GRAPHS = 32


@dataclass(frozen=True)
class _Graph:
    read: Mapping[torch.dtype, Tensor]
    said: Tensor
    kernels: torch.cuda.CUDAGraph


class PassGraphs:
    """The recorded passes of a fit, by a few sizes that hold them all. The first pass runs unrecorded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[PassSizes, _Graph] = {}
        self._warm, self._recordable = False, True
        # recorded and run on one stream, for autograd waits between streams, and a recording must not wait
        self._stream = torch.cuda.Stream(device)
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run, pair_pass: PairPass) -> Tensor:
        """-> what `run` returns for the pass"""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            sums = self._run_pass(run, pair_pass)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return sums

    def _run_pass(self, run: Run, pair_pass: PairPass) -> Tensor:
        needed = PassSizes.of(pair_pass)
        suited = [size for size in self._graphs if size.suits(needed)]
        if not self._warm or not self._recordable or (not suited and len(self._graphs) == MOST_GRAPHS):
            self._warm = True
            return run(moved(pair_pass, self._device))
        sizes = min(suited) if suited else needed.covering(self._graphs)
        pair_pass = filled(pair_pass, sizes)
        flats = flat_of(pair_pass, self._device)
        if sizes not in self._graphs:
            try:
                self._graphs[sizes] = self._record_pass(run, pair_pass, flats)
            except RuntimeError as error:
                # a model that asks the host within its pass, as mixtures of experts do
                logger.warning("passes run kernel by kernel, for they cannot be recorded: %s", one_line(error))
                self._recordable = False
                return run(moved(pair_pass, self._device))
        return self._replay_graph(self._graphs[sizes], flats)

    def _record_pass(self, run: Run, pair_pass: PairPass, flats: Mapping[torch.dtype, Tensor]) -> _Graph:
        """The kernels of a pass; recording computes nothing."""
        read = {dtype: flat.to(self._device, non_blocking=True) for dtype, flat in flats.items()}
        kernels = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        # a recording has a memory pool of its own: what torch still caches of the last pass would be held twice
        torch.cuda.empty_cache()
        # without torch.cuda.graph, which collects garbage first: a second. Other threads may use the device meanwhile.
        kernels.capture_begin(pool=self._memory, capture_error_mode="thread_local")
        try:
            sums = run(over(pair_pass, read))
        finally:
            kernels.capture_end()
        return _Graph(read, sums, kernels)

    @staticmethod
    def _replay_graph(graph: _Graph, flats: Mapping[torch.dtype, Tensor]) -> Tensor:
        for dtype, flat in flats.items():
            graph.read[dtype].copy_(flat, non_blocking=True)
        graph.kernels.replay()
        return graph.said.clone()
