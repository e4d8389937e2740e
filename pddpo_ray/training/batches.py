"""Texts as tensors. Shifting and masking of tokens happen here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pddpo_ray.records import PairRow

Text = tuple[tuple[int, ...], tuple[int, ...]]
"""(prompt token ids, response token ids incl. end of sequence)"""


@dataclass(frozen=True)
class TextBatch:
    """n texts, padded on the right, and where their response tokens are predicted.

    ids [n, L]; row, column [T]: position whose output predicts target [T] (T response tokens of all texts, in order).
    Nothing real attends to padding, because it is on the right and attention is causal.
    """

    ids: Tensor
    row: Tensor
    column: Tensor
    target: Tensor

    def to(self, device: torch.device) -> TextBatch:
        return TextBatch(*(tensor.to(device) for tensor in (self.ids, self.row, self.column, self.target)))

    def __len__(self) -> int:
        return int(self.ids.shape[0])


def collate(texts: Sequence[Text], pad: int = 0) -> TextBatch:
    """Texts to one padded batch."""
    lengths = np.array([len(prompt) + len(response) for prompt, response in texts])
    ids = np.full((len(texts), int(lengths.max())), pad, dtype=np.int64)
    rows, columns, targets = [], [], []
    for index, (prompt, response) in enumerate(texts):
        ids[index, : lengths[index]] = prompt + response
        rows.append(np.full(len(response), index))
        columns.append(np.arange(len(prompt) - 1, len(prompt) + len(response) - 1))
        targets.append(np.array(response))
    return TextBatch(*(torch.from_numpy(a) for a in (ids, *map(np.concatenate, (rows, columns, targets)))))


def texts_of(rows: Sequence[PairRow]) -> list[Text]:
    """Chosen then rejected text of each row. -> 2B texts, chosen of row i at i, rejected at B + i"""
    return [(row.prompt, row.chosen) for row in rows] + [(row.prompt, row.rejected) for row in rows]


def minibatches(rows: int, steps: int, size: int, seed: int) -> Iterator[np.ndarray]:
    """Row indices of each step: seeded permutations one after another, so that every row is used equally often."""
    rng = np.random.default_rng([seed, rows])
    size = min(size, rows)
    order = np.empty(0, dtype=np.int64)
    for _ in range(steps):
        if len(order) < size:
            order = np.concatenate([order, rng.permutation(rows)])
        yield order[:size]
        order = order[size:]
