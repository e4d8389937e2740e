"""Exact scores of every answer of a text world under a language model, phrase by phrase.

Answers of a prompt are the leaves of a tree of slots. Scoring the tree with a key-value cache reads each shared
beginning once, and the phrases of the last slot side by side without a cache of their own. A broad tree is scored in
parts, so that memory does not grow with the number of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pddpo_ray.worlds.text.grammar import Grammar

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

WIDEST = 2048
"""Beginnings that are scored together."""


@dataclass(frozen=True)
class _Beginnings:
    """Beginnings of answers as a batch of N. Padding stays in the cache but is masked and takes no position."""

    cache: list[tuple[Tensor, Tensor]]
    """Keys and values of every layer, [N, heads, L, D]."""
    mask: Tensor
    """[N, L] which of the words are real."""
    next_logits: Tensor
    """[N, V] of the word that follows."""
    total: Tensor
    """[N] log probability of the answer so far, float64."""

    def part(self, rows: slice) -> _Beginnings:
        cache = [(keys[rows], values[rows]) for keys, values in self.cache]
        return _Beginnings(cache, self.mask[rows], self.next_logits[rows], self.total[rows])


@torch.no_grad()
def score_answers(model: LlamaForCausalLM, grammar: Grammar) -> NDArray[np.float64]:
    """log pi(y|x) of every answer, end of sequence included. -> [X, Y] float64"""
    result = np.empty((len(grammar.prompt_ids), len(grammar.answer_features)))
    by_length: dict[int, list[int]] = {}
    for index, ids in enumerate(grammar.prompt_ids):
        by_length.setdefault(len(ids), []).append(index)
    for indices in by_length.values():
        start = _prompts(model, [grammar.prompt_ids[i] for i in indices])
        scores = _leaves(model, start, grammar.phrase_ids)
        result[indices] = scores.reshape(len(indices), -1).numpy()
    return result


def _prompts(model: Any, prompts: list[tuple[int, ...]]) -> _Beginnings:
    """Prompts of one length."""
    ids = torch.tensor(prompts)
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True)
    total = torch.zeros(len(prompts), dtype=torch.float64)
    return _Beginnings(_layers(output), torch.ones_like(ids), output.logits[:, -1], total)


def _leaves(model: Any, start: _Beginnings, slots: Sequence[Sequence[tuple[int, ...]]]) -> Tensor:
    """Log probabilities of all ends of all beginnings, last slot fastest: the order of Grammar.answer_features."""
    if len(start.total) > max(1, WIDEST // len(slots[0])):
        step = max(1, WIDEST // len(slots[0]))
        parts = [start.part(slice(begin, begin + step)) for begin in range(0, len(start.total), step)]
        return torch.cat([_leaves(model, part, slots) for part in parts])
    if len(slots) == 1:
        return _ends(model, start, slots[0])
    return _leaves(model, _extend_beginnings(model, start, slots[0]), slots[1:])


def _extend_beginnings(model: Any, start: _Beginnings, phrases: Sequence[tuple[int, ...]]) -> _Beginnings:
    """Every beginning followed by every phrase."""
    from transformers import DynamicCache

    words, real = _pad_phrases(phrases)
    count, before = len(phrases), len(start.total)
    cache = [
        (keys.repeat_interleave(count, dim=0), values.repeat_interleave(count, dim=0)) for keys, values in start.cache
    ]
    mask = torch.cat([start.mask.repeat_interleave(count, dim=0), real.repeat(before, 1)], dim=1)
    ids = words.repeat(before, 1)
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(dim=1) - 1)[:, -words.shape[1] :],
        past_key_values=DynamicCache(ddp_cache_data=cache),
        use_cache=True,
    )
    predicting = torch.cat([start.next_logits.repeat_interleave(count, dim=0)[:, None], output.logits[:, :-1]], dim=1)
    scores = torch.log_softmax(predicting.double(), dim=-1).gather(-1, ids[..., None])[..., 0]
    total = start.total.repeat_interleave(count) + (scores * real.repeat(before, 1)).sum(dim=1)
    ends = real.sum(dim=1).repeat(before) - 1
    return _Beginnings(_layers(output), mask, output.logits[torch.arange(len(total)), ends], total)


def _ends(model: Any, start: _Beginnings, phrases: Sequence[tuple[int, ...]]) -> Tensor:
    """Log probabilities of every beginning with every phrase of the last slot. -> [N * phrases]

    The phrases stand in one row and do not see each other; a phrase's last word, end of sequence, predicts nothing.
    """
    from transformers import DynamicCache

    before = len(start.total)
    ids = torch.tensor([word for phrase in phrases for word in phrase[:-1]])
    owner = torch.tensor([index for index, phrase in enumerate(phrases) for _ in phrase[:-1]])
    order = torch.tensor([position for phrase in phrases for position in range(len(phrase) - 1)])
    causal = (owner[:, None] == owner[None, :]) & (order[:, None] >= order[None, :])
    mask = torch.cat([start.mask.bool()[:, None, :].expand(-1, len(ids), -1), causal.expand(before, -1, -1)], dim=2)
    output = model(
        input_ids=ids.expand(before, -1),
        attention_mask=mask[:, None],
        position_ids=start.mask.sum(dim=1, keepdim=True) + order,
        past_key_values=DynamicCache(ddp_cache_data=start.cache),
        use_cache=True,
    )
    first = torch.log_softmax(start.next_logits.double(), dim=-1)
    later = torch.log_softmax(output.logits.double(), dim=-1)
    following = torch.tensor([word for phrase in phrases for word in phrase[1:]])
    scores = later.gather(-1, following.expand(before, -1)[..., None])[..., 0]
    inside = torch.zeros(before, len(phrases), dtype=torch.float64).index_add_(1, owner, scores)
    opening = first[:, torch.tensor([phrase[0] for phrase in phrases])]
    return (start.total[:, None] + opening + inside).reshape(-1)


def _layers(output: Any) -> list[tuple[Tensor, Tensor]]:
    return [(layer.keys, layer.values) for layer in output.past_key_values.layers]


def _pad_phrases(phrases: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Phrases of a slot, padded on the right, and which words are real. -> [n, W], [n, W]"""
    width = max(map(len, phrases))
    words = torch.zeros((len(phrases), width), dtype=torch.long)
    real = torch.zeros((len(phrases), width), dtype=torch.long)
    for row, phrase in enumerate(phrases):
        words[row, : len(phrase)] = torch.tensor(phrase)
        real[row, : len(phrase)] = 1
    return words, real
