"""Exact scores of every answer of the text world under a language model, phrase by phrase.

Answers of a prompt are the leaves of a tree of slots. Scoring the tree with a key-value cache reads each shared
beginning once: about a quarter of the tokens that scoring the answers one by one would read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pddpo_ray.worlds.grammar import Grammar

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


@torch.no_grad()
def score_answers(model: LlamaForCausalLM, grammar: Grammar) -> NDArray[np.float64]:
    """log pi(y|x) of every answer, end of sequence included. -> [X, Y] float64"""
    result = np.empty((len(grammar.prompt_ids), len(grammar.answer_ids)))
    by_length: dict[int, list[int]] = {}
    for index, ids in enumerate(grammar.prompt_ids):
        by_length.setdefault(len(ids), []).append(index)
    for indices in by_length.values():
        result[indices] = _score_prompts(model, grammar, [grammar.prompt_ids[i] for i in indices])
    return result


def _score_prompts(model: Any, grammar: Grammar, prompts: list[tuple[int, ...]]) -> NDArray[np.float64]:
    """Answers to prompts of one length. -> [n, Y]"""
    ids = torch.tensor(prompts)
    mask = torch.ones_like(ids)
    output = model(input_ids=ids, attention_mask=mask, use_cache=True)
    cache, last_logits = output.past_key_values, output.logits[:, -1]
    total = torch.zeros(len(prompts), dtype=torch.float64)
    for phrases in grammar.phrase_ids:
        words, real = _padded(phrases)
        before = len(total)
        # Every beginning is followed by every phrase, last slot fastest: the order of Grammar.answer_features.
        cache.batch_repeat_interleave(len(phrases))
        mask = torch.cat([mask.repeat_interleave(len(phrases), dim=0), real.repeat(before, 1)], dim=1)
        positions = (mask.cumsum(dim=1) - 1)[:, -words.shape[1] :]
        output = model(
            input_ids=words.repeat(before, 1),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        cache = output.past_key_values
        predicting = torch.cat(
            [last_logits.repeat_interleave(len(phrases), dim=0)[:, None], output.logits[:, :-1]], dim=1
        )
        token_log_probs = torch.log_softmax(predicting.double(), dim=-1)
        token_log_probs = token_log_probs.gather(-1, words.repeat(before, 1)[..., None])[..., 0]
        total = total.repeat_interleave(len(phrases)) + (token_log_probs * real.repeat(before, 1)).sum(dim=1)
        ends = real.sum(dim=1).repeat(before) - 1
        last_logits = output.logits[torch.arange(len(total)), ends]
    return total.reshape(len(prompts), -1).numpy()


def _padded(phrases: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Phrases of a slot, padded on the right, and which words are real. -> [n, W], [n, W]

    Padding stays in the cache but is masked, and positions count real words only, so later phrases do not see it.
    """
    width = max(map(len, phrases))
    words = torch.zeros((len(phrases), width), dtype=torch.long)
    real = torch.zeros((len(phrases), width), dtype=torch.long)
    for row, phrase in enumerate(phrases):
        words[row, : len(phrase)] = torch.tensor(phrase)
        real[row, : len(phrase)] = 1
    return words, real
