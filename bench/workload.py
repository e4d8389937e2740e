"""What the benchmarks run on: models with random weights from a seed, and real preference pairs as token ids."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import pddpo_ray
from pddpo_ray.records import PairRow, Prompt
from pddpo_ray.training.models.from_scratch import byte_level_words

SHIPPED = Path(pddpo_ray.__file__).parent / "sample_data" / "hh_helpful.jsonl.gz"
LONGEST_PROMPT, LONGEST_ANSWER = 128, 80
"""Tokens. Longer prompts lose their beginning and longer answers their end, so that a CPU is done in minutes."""


RANK, ALPHA = 16, 32.0
"""Of every adapter in the benchmarks on a GPU."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama, and where it is built; the default is the `micro` model of the tables, on a CPU in float32."""

    vocabulary: int = 4096
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    key_heads: int = 4
    intermediate: int = 512
    initial: float = 0.05
    """Standard deviation of the random weights; large enough that words differ, small enough that none wins."""
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def tolerance(self) -> float:
        """Relative difference that rounding alone may make between two ways to one number."""
        return 1e-4 if self.dtype == torch.float32 else 2e-2

    @property
    def number_type(self) -> str:
        """Its name, as recipes and engines have it."""
        return str(self.dtype).removeprefix("torch.")

    def build(self, seed: int) -> Any:
        """A model with random weights from a seed, made where it will stay: nothing is downloaded or moved."""
        from transformers import AutoModelForCausalLM, LlamaConfig

        config = LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            max_position_embeddings=1024,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=False,
            initializer_range=self.initial,
        )
        with self._seeded(seed), torch.device(self.device):
            return AutoModelForCausalLM.from_config(config, dtype=self.dtype).eval()

    def adapted(self, seed: int) -> Any:
        """The same with adapters that already change what it says, as those of a round in the middle of a run do."""
        from pddpo_ray.training.models.lora import add_adapters

        model: Any = self.build(seed)
        with self._seeded(seed):
            wrapped = add_adapters(model, rank=RANK, alpha=ALPHA)
            for name, tensor in wrapped.named_parameters():
                if ".lora_B." in name:
                    torch.nn.init.normal_(tensor, std=0.01)
        return wrapped.eval()

    def trained(self, seed: int, adapters: bool) -> Any:
        """With adapters or without."""
        return self.adapted(seed) if adapters else self.build(seed)

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        devices = [torch.cuda.current_device()] if self.device == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield


SEVEN = Shape(32_000, 4096, 32, 32, 32, 11_008, initial=0.02, device="cuda", dtype=torch.bfloat16)
EIGHT = Shape(128_256, 4096, 32, 32, 8, 14_336, initial=0.02, device="cuda", dtype=torch.bfloat16)
ONE = Shape(32_000, 2048, 22, 32, 4, 5632, initial=0.02, device="cuda", dtype=torch.bfloat16)
"""7B and 8B models as people train them, and one of 1.1B whose every weight is trained on one device."""


def language_model(vocabulary: int, seed: int, *, hidden: int = 256, layers: int = 4, heads: int = 4) -> Any:
    """A small Llama in float32 on a CPU."""
    shape = Shape(vocabulary, hidden, layers, heads, key_heads=heads, intermediate=2 * hidden)
    return shape.build(seed)


def trained_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of what an optimiser would change, where it is."""
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters() if tensor.requires_grad}


def preference_rows(vocabulary: int, count: int) -> list[PairRow]:
    """The first of the HH-RLHF pairs that ship with the package, as token ids."""
    texts = _texts()[:count]
    learned = _tokenizer(min(vocabulary, 8192))

    def ids(text: str) -> tuple[int, ...]:
        return tuple(learned.encode(text).ids)

    return [
        PairRow(f"hh-{index}", ids(prompt)[-LONGEST_PROMPT:], _ended(ids(chosen)), _ended(ids(rejected)))
        for index, (prompt, chosen, rejected) in enumerate(texts)
    ]


def _ended(ids: tuple[int, ...]) -> tuple[int, ...]:
    return (*ids[: LONGEST_ANSWER - 1], 2)


def tokenizer(vocabulary: int) -> Any:
    """The tokenizer of the rows as transformers wants it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(min(vocabulary, 8192)),
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<pad>",
    )


def endless(vocabulary: int) -> Any:
    """The same with an end mark just outside of the model's vocabulary: every answer is as long as it may be."""
    words = tokenizer(vocabulary)
    words.add_tokens([f"<unused-{number}>" for number in range(len(words), vocabulary)])
    words.add_special_tokens({"eos_token": "<never>"})
    return words


def prompts_of(vocabulary: int, count: int, call: int = 0) -> list[Prompt]:
    """Prompts of the shipped pairs (14 to 103 tokens) and, where there are too few, their answers as prompts.

    Every call has a first word of its own, so that no engine finds what it kept from an earlier one.
    """
    ids = [(3 + call, *text[1:]) for text in _prompt_texts(vocabulary, count)]
    return [Prompt(f"{call}-{place}", text, "") for place, text in enumerate(ids)]


def texts_of_prompts(count: int) -> list[str]:
    """The first different prompts of the shipped pairs, at most 500 characters of the end of each."""
    return list(dict.fromkeys(prompt[-500:] for prompt, _, _ in _texts()))[:count]


@cache
def _prompt_texts(vocabulary: int, count: int) -> list[tuple[int, ...]]:
    rows = preference_rows(vocabulary, count)
    texts = [row.prompt for row in rows] + [row.chosen[:-1] for row in rows] + [row.rejected[:-1] for row in rows]
    different = {text[1:]: text for text in texts}
    if len(different) < count:
        raise ValueError(f"there are {len(different)} different texts, not {count}")
    return list(different.values())[:count]


@cache
def _texts() -> list[tuple[str, str, str]]:
    with gzip.open(SHIPPED, "rt", encoding="utf-8") as lines:
        return [_three_parts(json.loads(line)) for line in lines]


def _three_parts(row: dict[str, str]) -> tuple[str, str, str]:
    """Prompt and both answers; HH's own layout repeats the dialogue in both texts."""
    if "prompt" in row:
        return row["prompt"], row["chosen"], row["rejected"]
    end = row["chosen"].rindex("\n\nAssistant:") + len("\n\nAssistant:")
    return row["chosen"][:end], row["chosen"][end:], row["rejected"][end:]


@cache
def _tokenizer(size: int) -> Any:
    """A byte-level BPE learned from the pairs themselves: nothing is downloaded."""
    return byte_level_words((" ".join(row) for row in _texts()), size)
