"""A Llama small enough for tests and a word-level tokenizer, both made in code: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = tuple(f"word{i}" for i in range(84))
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")


def word_tokenizer(words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    """One token a word; ids follow the order of `SPECIAL` and then of `words`."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )


def tiny_llama(
    seed: int,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 2,
    words: int = len(WORDS),
    tied: bool = False,
    context: int = 128,
) -> LlamaForCausalLM:
    """Random weights from `seed`; spread wide enough that two seeds differ clearly in their log-probabilities."""
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + words,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.25,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(torch.float32).eval()


def save_policy(folder: Path, seed: int, *, tied: bool = False, **shape: int) -> Path:
    """Write a whole model folder (weights, config, tokenizer) -> `folder`."""
    tiny_llama(seed, tied=tied, **shape).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder
