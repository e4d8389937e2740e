"""What training takes in memory, as pure functions of sizes; nothing heavy is imported, so that a plan can ask.

    M = weights + gradients + optimiser + activations + head + collectives

The weights are those of one model: what frozen models say about a row is a stored number. What a layer keeps of a token
for its backward pass is measured (`kept_bytes.py`): it depends on heads, adapters and types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pddpo_ray.training.device import chunk_rows

HEAD_BYTES = 10.0
"""Bytes per token and word while log-probabilities are made: logits, float32 log-softmax, float32 gradient."""
NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a number in NF4 with double quantisation (QLoRA, section 3): 4 bits, a scale of 8 bits for 64 of them, and
one of 32 bits for 256 scales."""
REDUCED = 50_000_000
"""Numbers of gradients that DeepSpeed collects before ranks sum them. Its own default of 500 million takes 1 GB."""
GATHERED = 1_000_000_000
"""Numbers of weights that ZeRO-3 has whole at a time: DeepSpeed's default."""
PACKED_FROM = 50_000
"""Parameters from which on packing pays (measured with 92,000 of them: docs/performance.md)."""


@dataclass(frozen=True)
class Sizes:
    """Depth of a model, bytes of one of its numbers, and bytes that a token keeps for the backward pass."""

    layers: int
    width: int
    layer: float
    """In each layer."""
    input: float
    """In a layer that is computed again: its input."""
    outside: float = 0.0
    """Outside of the layers."""


def layer_bytes(tokens: float, sizes: Sizes, recomputed: int = 0) -> float:
    """Activations of one pass over a number of tokens when `recomputed` of the layers keep their input alone."""
    per_token = sizes.layer * (sizes.layers - recomputed) + sizes.input * recomputed + sizes.outside
    # one recomputed layer at a time exists in full during the backward pass
    return tokens * (per_token + (sizes.layer if recomputed else 0.0))


def recomputed_layers(budget: float, tokens: float, sizes: Sizes) -> int:
    """The fewest layers to compute again so that a pass over the tokens fits the budget; all if it never does."""
    for count in range(sizes.layers):
        if layer_bytes(tokens, sizes, count) <= budget:
            return count
    return sizes.layers


def tokens_within(budget: float, sizes: Sizes, recomputed: int = 0) -> int:
    """Tokens of one pass whose activations fit the budget."""
    return math.floor(budget / layer_bytes(1.0, sizes, recomputed))


def weight_bytes(parameters: int, width: int, in_nf4: int = 0) -> float:
    """Bytes of a model with `in_nf4` of its parameters in four bits."""
    return (parameters - in_nf4) * width + in_nf4 * NF4_BYTES


def reduced_numbers(trained: int) -> int:
    """Size of DeepSpeed's buffer, allocated in full on the ranks that were tracked (bench.zero_memory)."""
    return min(REDUCED, trained)


def memory_need(
    *,
    parameters: int,
    trained: int,
    vocabulary: int,
    sizes: Sizes,
    tokens: int,
    stage: int = 0,
    ranks: int = 1,
    activation_budget: float | None = None,
    device: str = "cpu",
    in_nf4: int = 0,
) -> Mapping[str, float]:
    """Bytes of one rank by purpose. `trained` parameters have gradients and AdamW's state; `tokens` are in one pass.

    bfloat16 training keeps a float32 copy of what is trained, and without ZeRO float32 gradients. ZeRO divides by the
    number of ranks the optimiser (stage 1), also the gradients (2), also the weights (3); what ranks exchange is there
    besides: gradients on their way, and weights that stage 3 has gathered. Logits exist in chunks for all but very
    small models and ZeRO-3; the gradient of a trained head is summed in float32 over the chunks. Of a base with
    `in_nf4` parameters in four bits, those of at most a layer are there in the run's type at a time.
    """
    optimizer = trained * (8.0 + (4.0 if sizes.width == 2 else 0.0))
    activations = layer_bytes(tokens, sizes)
    if activation_budget is not None:
        smallest = layer_bytes(tokens, sizes, sizes.layers)
        activations = min(activations, max(activation_budget, min(smallest, activations)))
    chunked = parameters >= PACKED_FROM and stage < 3
    rows = min(tokens, chunk_rows(vocabulary, device)) if chunked else tokens
    exchanged = reduced_numbers(trained) + (min(GATHERED, parameters) if stage == 3 else 0)
    sums = (4.0 + sizes.width) * vocabulary * sizes.input / sizes.width if chunked and trained == parameters else 0.0
    return {
        "weights": weight_bytes(parameters, sizes.width, in_nf4) / (ranks if stage == 3 else 1),
        "gradients": trained * (sizes.width if stage else 4.0) / (ranks if stage >= 2 else 1),
        "optimizer": optimizer / (ranks if stage >= 1 else 1),
        "activations": activations,
        "head": HEAD_BYTES * vocabulary * rows + sums,
        **({"collectives": float(sizes.width * exchanged)} if stage else {}),
        **({"a layer out of NF4": in_nf4 * sizes.width / sizes.layers} if in_nf4 else {}),
    }
