"""Log-linear policies on a grammar's answers: a text world's network replaced by a sum of weights.

    pi(y|x) = reference(y|x) exp(theta . phi(x, y)) / Z(x)

phi is one-hot: the phrase in each slot, the phrase with the prompt's topic, and the phrases of every two slots. Columns
are scaled by their prior, so that all weights are alike a priori, and so that the prior standard deviation of a weight
is that of the difference of the scores of two answers that share no feature.

Such a policy writes nothing outside the grammar: its reference is the network's, given that an answer is one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pddpo_ray.records import Array
from pddpo_ray.worlds.text.grammar import Grammar

Indices = NDArray[np.int64]

THETA = "theta"
"""Name of a version's weights in its file."""


@dataclass(frozen=True, eq=False)
class Block:
    """One-hot features: cell (x, y) switches on column by_prompt[x] + by_answer[y] of `size`."""

    by_prompt: Indices
    """[X]"""
    by_answer: Indices
    """[Y]"""
    size: int
    spread: float
    """Prior standard deviation of a weight, against those of the other blocks."""


@dataclass(frozen=True, eq=False)
class LogLinear:
    """The class of policies around one reference."""

    log_reference: Array
    """[X, Y], normalised over the answers of the grammar."""
    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """p, the number of weights."""
        return sum(block.size for block in self.blocks)

    def features(self, prompts: Indices, answers: Indices) -> Array:
        """phi of cells. [n], [n] -> [n, p]"""
        rows = np.zeros((len(prompts), self.size))
        for block, start, scale in self._scaled:
            rows[np.arange(len(rows)), start + block.by_prompt[prompts] + block.by_answer[answers]] = scale
        return rows

    def scores(self, theta: Array) -> Array:
        """theta . phi of every cell. [p] -> [X, Y]"""
        total = np.zeros_like(self.log_reference)
        for block, start, scale in self._scaled:
            total += scale * theta[start + block.by_prompt[:, None] + block.by_answer[None, :]]
        return total

    def log_probs(self, theta: Array) -> Array:
        """log pi of every cell. [p] -> [X, Y]"""
        logits = self.log_reference + self.scores(theta)
        return np.asarray(logits - logsumexp(logits, axis=1, keepdims=True))

    @cached_property
    def _scaled(self) -> tuple[tuple[Block, int, float], ...]:
        """Blocks with their first column and the value of a switched-on feature."""
        unit = math.sqrt(2.0 * sum(block.spread**2 for block in self.blocks))
        starts = itertools.accumulate((block.size for block in self.blocks[:-1]), initial=0)
        return tuple((block, start, block.spread / unit) for block, start in zip(self.blocks, starts, strict=True))


def given_the_grammar(log_probs: Array) -> Array:
    """log-probabilities of the answers, given that an answer is one of them. [X, Y] -> [X, Y]"""
    return np.asarray(log_probs - logsumexp(log_probs, axis=1, keepdims=True))


def phrase_blocks(grammar: Grammar, *, slots: float, topics: float, interactions: float) -> tuple[Block, ...]:
    """Slots, slots by topic and pairs of slots, each group with its prior's spread."""
    topic, phrase, sizes = grammar.prompt_features[:, 0], grammar.answer_features, slot_sizes(grammar)
    alike = np.zeros(len(topic), dtype=np.int64)
    own = [Block(alike, phrase[:, s], size, slots) for s, size in enumerate(sizes)]
    by_topic = [Block(topic * size, phrase[:, s], len(grammar.topics) * size, topics) for s, size in enumerate(sizes)]
    pairs = [
        Block(alike, phrase[:, s] * sizes[t] + phrase[:, t], sizes[s] * sizes[t], interactions)
        for s, t in itertools.combinations(range(len(sizes)), 2)
    ]
    return (*own, *by_topic, *pairs)


def slot_sizes(grammar: Grammar) -> Sequence[int]:
    """[S] phrases per slot"""
    return tuple(len(slot.phrases) for slot in grammar.slots)
