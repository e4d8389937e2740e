"""What a run learns from: files of pairs and prompts, which of their rows, and how they become tokens."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from pddpo_ray.config.sections.section import Strict


class SmallModelConfig(Strict):
    """Shape of a reference that is trained here in place of a downloaded one."""

    hidden: int = Field(64, ge=32, multiple_of=8)
    """Width of the model."""
    layers: int = Field(2, ge=1)
    """Number of layers."""
    heads: int = Field(2, ge=1)
    """Attention heads; vLLM on CPU wants at least 32 dimensions per head."""
    intermediate: int = Field(128, ge=32)
    """Width inside the feed-forward blocks."""


class ScratchReferenceConfig(Strict):
    """Size and training of a reference that is made from the run's own texts."""

    hidden: int = Field(64, ge=32, multiple_of=32)
    """Width of the model, which has two layers."""
    vocabulary: int = Field(1024, ge=300)
    """Tokens of its byte-level tokenizer."""
    context: int = Field(192, ge=16)
    """Longest prompt and answer together, in tokens."""
    steps: int = Field(200, ge=1)
    """Optimiser steps."""

    @property
    def shape(self) -> SmallModelConfig:
        """32 dimensions a head are the fewest that vLLM takes on CPUs; twice the width inside is usual."""
        return SmallModelConfig(hidden=self.hidden, heads=self.hidden // 32, intermediate=2 * self.hidden)


class DataConfig(Strict):
    """Files of real text, in any format of `pddpo data`."""

    helpful: list[str] = Field([])
    """Files of pairs whose `chosen` is the more helpful answer."""
    harmless: list[str] = Field([])
    """Files of pairs whose `chosen` is the less harmful answer. A row that states both labels gives both, in
    either list."""
    sample: bool = False
    """Whether the 200 HH-RLHF pairs that ship stand in where both lists are empty, to try things out."""
    columns: dict[str, str] = Field({})
    """Names of fields here, and what the files of pairs or prompts call them, e.g. {prompt: ask}."""
    ignore: list[str] = Field([])
    """Fields of those files that are left out on purpose, though they hold text, or their names sound like a
    judgement."""
    prompts: list[str] = Field([])
    """Files of prompts for the rounds; empty: those of the pairs."""
    prompt_count: int = Field(48, ge=1)
    """Prompts that a run uses at most; they are drawn by seed."""
    template: str = "tokenizer-or-hh"
    """From turns to text: plain, hh, safe-rlhf, alpaca, chatml, tokenizer (the reference's own chat template),
    tokenizer:NAME (one of several), or tokenizer-or-NAME: its own, and the named one where it has none."""
    template_arguments: dict[str, Any] = Field({})
    """Arguments of the chat template, e.g. {enable_thinking: false}. They are set in the template that every version
    carries, so training, sampling, the endpoint and exports have the same."""
    prompt_tokens: int = Field(96, ge=4)
    """Longer prompts are left out."""
    answer_tokens: int = Field(96, ge=2)
    """Pairs with a longer answer are left out."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Share of the pairs' prompts that no run asks or learns from: `pddpo compare` judges the policies by them."""
    seed: int = Field(0, ge=0)
    """Draws prompts and pairs, the held-out ones too, and initialises the reference."""
    reference: ScratchReferenceConfig | None = None
    """A small model, trained on these texts from nothing where `model.reference` is null, to try things out."""
    cache: str | None = None
    """Folder of trained references; null: `$PDDPO_CACHE`, else `~/.cache/pddpo_ray`."""

    @field_validator("template_arguments")
    @classmethod
    def _names_of_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in arguments:
            if not name.isidentifier() or name in ("messages", "add_generation_prompt", "bos_token", "eos_token"):
                raise ValueError(f"{name!r} is no argument that a recipe can set")
        return arguments
