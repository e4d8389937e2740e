"""The delivery check for a vLLM engine that this project did not start: does it compute with the trainer's weights?

    answers = canaries(tokenizer, ["How do I clean a pan?"], ["Soak it first."])
    check(model, llm, answers)

Only the canaries are compared: such an engine loads its tensors unseen, so there is no hash of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pddpo_ray.errors import RunError
from pddpo_ray.rollout.delivery_check import FLOAT32_TOLERANCE, largest_difference
from pddpo_ray.rollout.vllm_engine import log_probs_of
from pddpo_ray.training.passes.log_probs import ResponseScorer

Canary = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt and of an answer to it."""


def canaries(tokenizer: Any, prompts: Sequence[str], answers: Sequence[str]) -> list[Canary]:
    """Texts as token ids, without special tokens. `tokenizer` is one of transformers."""
    pairs = zip(prompts, answers, strict=True)
    return [(_ids(tokenizer, prompt), _ids(tokenizer, answer)) for prompt, answer in pairs]


def check(model: Any, llm: Any, answers: Sequence[Canary], *, tolerance: float = FLOAT32_TOLERANCE) -> float:
    """The largest difference of a canary's log-probability per token, between the trainer's model and the engine.

    `model` is a causal language model of transformers, `llm` a `vllm.LLM`. Raises RunError above `tolerance`, which is
    for float32 on both sides; in bfloat16 take the largest difference of a delivery that you trust, and some more.
    """
    if not answers or any(not prompt or not answer for prompt, answer in answers):
        raise RunError("delivery check: give at least one canary, each with tokens in its prompt and in its answer")
    scorer, training = ResponseScorer(model, "plain"), model.training
    model.eval()
    try:
        with torch.no_grad():
            expected = scorer.log_probs(answers)[0].double().cpu().numpy()
    finally:
        model.train(training)
    scores = log_probs_of(llm.generate, answers)
    difference = largest_difference(np.asarray(scores), expected, [len(answer) for _, answer in answers])
    if not difference <= tolerance:
        raise RunError(
            f"delivery check: log-probabilities of {len(answers)} canaries differ by up to {difference:.3g} per token"
            f" (tolerance {tolerance:.3g}): the engine computes with other weights than the trainer. Deliver them again"
            " before anything is sampled"
        )
    return difference


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
