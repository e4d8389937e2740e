"""C14: sampling with the rollout's transformers engine against transformers' `generate`, on a real pretrained model.

The same weights, real prompts of different lengths and number of tokens on both sides; no answer can end early. Before
anything is timed, a plain forward pass of the peer's model must find the log-probabilities that the engine states.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.ratio import Ratio, of_pairs
from bench.rollout import answers, assert_same_log_probs, generate
from bench.workload import texts_of_prompts
from pddpo_ray.records import Decoding, Prompt
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import store_reference


@dataclass(frozen=True)
class Size:
    """How much is sampled."""

    answers: int = 32
    tokens: int = 64


def run(repeats: int = 5) -> list[Ratio]:
    """SmolLM2-135M-Instruct, one thread."""
    from pddpo_ray.training.models.pretrained import fetch

    torch.set_num_threads(1)
    return against_generate(fetch("smollm2"), Size(), repeats)


def against_generate(folder: Path, size: Size, repeats: int) -> list[Ratio]:
    """CPU seconds and wall seconds of `generate` over those of the engine, in the order peer, ours, ours, peer."""
    with tempfile.TemporaryDirectory() as place:
        model, prompts = without_end(folder, Path(place) / "model", size)
        store = ArtifactStore(Path(place) / "artifacts")
        policy = store_reference(store, Path(place) / "model")
        engine = TransformersEngine("bench", Path(place) / "model", store)
        engine.deliver(policy)
        assert_same_log_probs(engine, model, prompts, Decoding(max_tokens=size.tokens), 1e-4)

        def theirs() -> int:
            return sum(map(len, generate(model, prompts, size.tokens)))

        def ours() -> int:
            return sum(map(len, answers(engine, prompts, size.tokens)))

        made = {theirs(), ours()}
        if made != {size.answers * size.tokens}:
            raise RuntimeError(f"the two sides make {made} tokens, {size.answers * size.tokens} were asked for")
        pairs = []
        for _ in range(repeats):
            first, second, third, fourth = (seconds(side) for side in (theirs, ours, ours, theirs))
            pairs.append(((first + fourth) / 2, (second + third) / 2))
    what = f"sampling {size.answers} answers of {size.tokens} tokens: transformers generate / ours with transformers"
    return [
        of_pairs(
            name,
            what if unit == "CPU-s" else f"the same, {unit} of wall time",
            [(float(peer[clock]), float(own[clock])) for peer, own in pairs],
            floor=1.0,
            details={
                f"{side} tokens/{unit}": size.answers
                * size.tokens
                / float(np.median([pair[i][clock] for pair in pairs]))
                for i, side in enumerate(("peer", "ours"))
            },
        )
        for clock, (name, unit) in enumerate((("C14", "CPU-s"), ("C14-wall", "s")))
    ]


def without_end(folder: Path, target: Path, size: Size) -> tuple[Any, list[Prompt]]:
    """The model with nothing that ends an answer, also written to `target`, and prompts in its tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    texts = texts_of_prompts(size.answers)
    prompts = [Prompt(str(number), tuple(tokenizer(text)["input_ids"]), text) for number, text in enumerate(texts)]
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token = None
    tokenizer.chat_template = None  # it says too what ends an answer
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return model, prompts


def seconds(side: Callable[[], object]) -> np.ndarray:
    """-> [CPU of this process, wall]"""
    gc.collect()
    before = np.array([time.process_time(), time.perf_counter()])
    side()
    return np.array([time.process_time(), time.perf_counter()]) - before
