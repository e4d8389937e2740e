"""A small reference from nothing but texts: byte-level tokenizer, tiny Llama, next-token training; kept in a cache.

It will not write well. What it gives is a real reference for real text on two cores, with nothing downloaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pddpo_ray.config import SmallModelConfig
from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import made_once

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


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


PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
BATCH_NAMES = 5
"""Purpose of the generator that draws batches."""
CACHE_LAYOUT = 1
"""Raised when the training changes, so that old cache entries are not used."""

TextPair = tuple[str, str]
"""Rendered prompt and answer, the answer with the white space that separates it."""


class ScratchSpec(SmallModelConfig):
    """Size, training and seed of the reference."""

    vocabulary: int = 1024
    context: int = 192
    steps: int = 200
    batch: int = 16
    """Texts per step. With this and the learning rate below 200 HH-RLHF pairs give a model that ends its answers."""
    learning_rate: float = 4e-3
    """Peak of a one-cycle schedule."""
    seed: int = 0


def train_tokenizer(texts: Sequence[TextPair], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of these texts: every text has tokens, and none is unknown."""
    from transformers import PreTrainedTokenizerFast

    words = byte_level_words((text for pair in texts for text in pair), vocabulary)
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=PAD, bos_token=BOS, eos_token=EOS)


def byte_level_words(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE as `tokenizers` has it, without transformers around it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[PAD, BOS, EOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    words.train_from_iterator(texts, trainer)
    return words


def sequences(texts: Sequence[TextPair], tokenizer: Any, context: int) -> list[list[int]]:
    """Whole token sequences, beginning and end of sequence included, that fit the context."""
    rows = []
    for prompt, answer in texts:
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer)]
        whole = [tokenizer.bos_token_id, *ids[0], *ids[1], tokenizer.eos_token_id]
        if len(whole) <= context:
            rows.append(whole)
    return rows


def build_model(spec: ScratchSpec, tokenizer: Any) -> LlamaForCausalLM:
    """An untrained model of the given size, float32."""
    return small_llama(
        spec,
        spec.seed,
        vocabulary=len(tokenizer),
        context=spec.context,
        bos=tokenizer.bos_token_id,
        eos=tokenizer.eos_token_id,
        pad=tokenizer.pad_token_id,
    )


def pretrain(model: LlamaForCausalLM, rows: Sequence[Sequence[int]], spec: ScratchSpec) -> list[float]:
    """Next-token training in place. -> loss per token of every step

    Texts of similar length share a batch, so little of it is padding.
    """
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    batches = [order[start : start + spec.batch] for start in range(0, len(order), spec.batch)]
    rng = np.random.default_rng([spec.seed, len(rows), BATCH_NAMES])
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, spec.learning_rate, total_steps=spec.steps + 1, pct_start=0.1
    )
    losses = []
    for _ in range(spec.steps):
        loss = _loss(model, [rows[index] for index in batches[int(rng.integers(len(batches)))]])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


def _loss(model: LlamaForCausalLM, rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), model.config.pad_token_id)
    targets = torch.full((len(rows), longest), -100)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = targets[index, : len(row)] = torch.tensor(row)
    # Padding is on the right, so no real position attends to it and no mask is needed.
    logits = model(input_ids=ids).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-100)


def cached_reference(texts: Sequence[TextPair], spec: ScratchSpec, cache: Path) -> Path:
    """Folder of the model trained on these texts, from the cache if it was trained before.

    UserError if no text fits the context.
    """

    def make(folder: Path) -> None:
        tokenizer = train_tokenizer(texts, spec.vocabulary)
        rows = sequences(texts, tokenizer, spec.context)
        if not rows:
            raise UserError(f"no text has at most {spec.context} tokens: raise data.reference.context")
        model = build_model(spec, tokenizer)
        pretrain(model, rows, spec)
        model.eval().save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    digest = hashlib.sha256(json.dumps([CACHE_LAYOUT, spec.model_dump(), list(texts)]).encode()).hexdigest()
    return made_once(cache / f"scratch-reference-{digest[:12]}", make)
