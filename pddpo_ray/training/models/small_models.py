"""Small models that are trained here in place of downloaded ones: their shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pddpo_ray.config import SmallModelConfig

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def small_llama(
    shape: SmallModelConfig, seed: int, *, vocabulary: int, context: int, bos: int, eos: int, pad: int
) -> LlamaForCausalLM:
    """An untrained model of this shape, float32; its weights follow from the seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=context,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).float()
