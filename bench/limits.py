"""What arithmetic and memory allow: operations of a training pass, and the most tokens a second of sampling.

Operations are counted from sizes and real tokens, not from what a program does: padding, a prompt computed twice and
layers computed again are work that nobody asked for, so they lower the share of the peak instead of raising it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bench.workload import RANK, Shape
from pddpo_ray.records import PairRow

SHEET_FLOPS, SHEET_BYTES = 989e12, 4.8e12
"""An H200's data sheet: dense bfloat16 operations a second, bytes a second. Shares of a peak are shares of these."""
REACHED_FLOPS, REACHED_BYTES = 790e12, 4.3e12
"""What large products and copies are expected to reach of that; G0 measures both."""


def layer_weights(shape: Shape) -> int:
    """Weights of all linear maps but the head."""
    keys = shape.hidden * shape.key_heads // shape.heads
    attention = 2 * shape.hidden * shape.hidden + 2 * shape.hidden * keys
    return shape.layers * (attention + 3 * shape.hidden * shape.intermediate)


def adapter_weights(shape: Shape) -> int:
    """Weights of the adapters: rank times inputs and outputs of every linear map but the head."""
    keys = shape.hidden * shape.key_heads // shape.heads
    ends = 2 * (2 * shape.hidden) + 2 * (shape.hidden + keys) + 3 * (shape.hidden + shape.intermediate)
    return shape.layers * RANK * ends


def real_tokens(rows: Sequence[PairRow]) -> int:
    """Tokens of the pairs, each prompt once, no padding."""
    return sum(len(row.prompt) + len(row.chosen) + len(row.rejected) for row in rows)


def training_flops(shape: Shape, rows: Sequence[PairRow], *, adapters: bool) -> float:
    """Operations of one forward and backward pass over the pairs: two for each weight and token in every product.

    Behind a frozen weight there is a gradient of its input, but none of itself: twice the forward pass in place of
    three times. Words are scored where an answer's token is predicted, and nowhere else.
    """
    answers = sum(len(row.chosen) + len(row.rejected) for row in rows)
    linear = 2.0 * (real_tokens(rows) * layer_weights(shape) + answers * shape.vocabulary * shape.hidden)
    attention = 4.0 * shape.hidden * shape.layers * sum(map(_attended, rows))
    if not adapters:
        return 3 * (linear + attention)
    return 2 * linear + 3 * attention + 3 * 2.0 * real_tokens(rows) * adapter_weights(shape)


def _attended(row: PairRow) -> int:
    """How many (token, earlier token or itself) there are in a pair whose prompt stands once."""
    prompt, answers = len(row.prompt), (len(row.chosen), len(row.rejected))
    return _triangle(prompt) + sum(prompt * answer + _triangle(answer) for answer in answers)


def _triangle(length: int) -> int:
    return length * (length + 1) // 2


def sampling_roofline(shape: Shape, batch: int, context: int) -> float:
    """Tokens a second that no sampler can pass: every step reads all weights and the cache, and multiplies once."""
    weights = layer_weights(shape) + shape.vocabulary * shape.hidden
    keys = 2 * shape.layers * shape.hidden * shape.key_heads // shape.heads
    read = (weights + keys * batch * context) * torch.finfo(shape.dtype).bits // 8
    return batch / max(read / REACHED_BYTES, 2.0 * weights * batch / REACHED_FLOPS)
