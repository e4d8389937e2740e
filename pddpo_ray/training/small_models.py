"""Small models that are trained here in place of downloaded ones: their shape, and the cache that keeps them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pddpo_ray.config import SmallModelConfig
from pddpo_ray.storage.whole_files import written_aside

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


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` unless it is there already. Two runs that start together never read half of it."""
    if folder.exists():
        return folder
    with written_aside(folder) as staging:
        staging.mkdir()
        make(staging)
    return folder


def cache_folder(configured: str | None = None) -> Path:
    """Where trained references are kept: as configured, else `$PDDPO_CACHE`, else `~/.cache/pddpo_ray`."""
    return Path(configured or os.environ.get("PDDPO_CACHE") or "~/.cache/pddpo_ray").expanduser()
