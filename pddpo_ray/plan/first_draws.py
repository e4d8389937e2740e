"""Samples the model to align before a recipe is written: where its answers end, and how long they are."""

from __future__ import annotations

from collections.abc import Sequence

from pddpo_ray.data.formats.example import Example
from pddpo_ray.data.lengths import Lengths, Measured
from pddpo_ray.evaluate.models import Reply, Speaker, parse_model
from pddpo_ray.records import Decoding
from pddpo_ray.theory.seeds import generator, seed_of

ASKED = 128
"""Prompts that it answers once each."""
TOGETHER = 32
"""Answers per batch: the key-value cache of 128 answers of 600 tokens is 3.6 GB, for SmolLM2 of 0.5 GB."""


def first_draws(model: str, prompts: Sequence[Example], longest: int, temperature: float) -> Lengths:
    """Tokens and words of its answers to some of the prompts, of at most `longest` tokens."""
    order = generator("first draws", len(prompts)).permutation(len(prompts))[:ASKED]
    dialogues = [prompts[index].prompt for index in order]
    speaker = Speaker(parse_model(f"model={model}"), template="tokenizer-or-plain", temperature=temperature)
    try:
        seeds = [seed_of("first draws", index) for index in range(len(dialogues))]
        decoding = Decoding(max_tokens=longest)
        replies: list[list[Reply]] = []
        for begin in range(0, len(dialogues), TOGETHER):
            part = slice(begin, begin + TOGETHER)
            replies += speaker.answer(dialogues[part], seeds[part], decoding)
        tokens = [len(speaker.renderer.prompt_ids(turns)) for turns in dialogues]
    finally:
        speaker.close()
    sample = tuple(
        Measured(prompt, (len(reply.token_ids),), (len(reply.text.split()),))
        for prompt, (reply,) in zip(tokens, replies, strict=True)
    )
    return Lengths(len(sample), len(sample), sample)
