"""Which share of the trained numbers a fit has changed, as they are published.

A step that is smaller than half the distance to the next number of the type leaves the published weight as it was. In
bfloat16 that distance is up to 1/128 of the weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SAMPLE = 2**20
"""Numbers that are looked at, spread evenly; of fewer, all. The share is then known to a tenth of a percent."""


def sampled(weights: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Every n-th trained number of a version in the type in which it is published. -> [at most about SAMPLE]"""
    step = max(1, sum(tensor.numel() for tensor in weights.values()) // SAMPLE)
    return torch.cat([weights[name].reshape(-1)[::step].to(dtype) for name in sorted(weights)])


def moved_share(before: Tensor, after: Tensor) -> float:
    """Share of the numbers that differ. [n], [n] -> in [0, 1]"""
    return float((before != after).double().mean())
