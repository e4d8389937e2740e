"""Exact scores of given answers under any causal language model and any tokenisation.

Answers that begin alike share their beginning: the tokens of a prompt's answers are a tree, walked level by level with
one key-value cache, so that each token of the tree is read once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROWS = 2048
"""Branches that are read in one pass; where a level of the tree has more, its parts are walked one after the other."""

Ids = tuple[int, ...]


@torch.no_grad()
def score_tree(model: Any, prompt: Ids, answers: Sequence[Ids], rows: int = ROWS) -> NDArray[np.float64]:
    """log-probability of each answer after the prompt, the sum over all of its tokens. -> [Y] float64

    No answer may be the beginning of another one; answers that end with the same end token never are.
    """
    order = sorted(range(len(answers)), key=lambda index: answers[index])
    tree = _Tree(model, [answers[index] for index in order], rows)
    output = model(input_ids=torch.tensor([prompt], device=model.device), use_cache=True)
    tree.walk(output.past_key_values, output.logits[:, -1], [_Branch(0, len(answers))], 0)
    result = np.empty(len(answers))
    result[order] = tree.totals
    return result


@dataclass(frozen=True)
class _Branch:
    """Answers begin:end, in sorted order, whose tokens have been the same so far."""

    begin: int
    end: int


class _Tree:
    def __init__(self, model: Any, answers: Sequence[Ids], rows: int) -> None:
        self._model, self._answers, self._rows = model, answers, rows
        self.totals = np.zeros(len(answers))

    def walk(self, cache: Any, logits: Tensor, branches: Sequence[_Branch], depth: int) -> None:
        """Continues behind `branches`, one row of cache and logits [n, V] each, to the ends of their answers."""
        while branches:
            grown = [(row, *child) for row, branch in enumerate(branches) for child in self._children(branch, depth)]
            rows, tokens = [row for row, _, _ in grown], [token for _, token, _ in grown]
            steps = _log_probs(logits, rows, tokens)
            going = []
            for index, (_, _, branch) in enumerate(grown):
                self.totals[branch.begin : branch.end] += steps[index]
                if depth + 1 < len(self._answers[branch.begin]):
                    going.append(index)
            branches, depth = [grown[index][2] for index in going], depth + 1
            parts = [going[start : start + self._rows] for start in range(0, len(going), self._rows)]
            for part in parts[1:]:
                own, after = self._read(copy.deepcopy(cache), [rows[i] for i in part], [tokens[i] for i in part])
                self.walk(own, after, [grown[index][2] for index in part], depth)
            if parts:
                first = parts[0]
                cache, logits = self._read(cache, [rows[i] for i in first], [tokens[i] for i in first])
                branches = branches[: len(first)]

    def _children(self, branch: _Branch, depth: int) -> Iterator[tuple[int, _Branch]]:
        """(next token, answers that continue with it)"""
        begin = branch.begin
        tokens = (self._answers[index][depth] for index in range(branch.begin, branch.end))
        for token, same in groupby(tokens):
            count = sum(1 for _ in same)
            yield token, _Branch(begin, begin + count)
            begin += count

    def _read(self, cache: Any, rows: Sequence[int], tokens: Sequence[int]) -> tuple[Any, Tensor]:
        """One token further: row i continues rows[i] with tokens[i]. -> cache, logits [n, V]"""
        device = self._model.device
        cache.reorder_cache(torch.tensor(rows, device=device))
        ids = torch.tensor(tokens, device=device)[:, None]
        output = self._model(input_ids=ids, past_key_values=cache, use_cache=True)
        return output.past_key_values, output.logits[:, -1]


def _log_probs(logits: Tensor, rows: Sequence[int], tokens: Sequence[int]) -> NDArray[np.float64]:
    """Log-probability of tokens[i] by row rows[i]. [n, V] -> [m] float64"""
    table = torch.log_softmax(logits.double(), dim=-1)
    chosen: NDArray[np.float64] = table[list(rows), list(tokens)].cpu().numpy()
    return chosen
