"""Texts as tensors, and tensors on their way to a device. Texts are shifted and masked here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pddpo_ray.records import PairRow

FEWEST = 4
"""Prompts that are kept apart at least; with fewer prompts than can spare them a fit learns from every pair."""

R = TypeVar("R")
"""A record: a dataclass whose fields are tensors, other such records, or plain values."""
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
        return moved(self, device)

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


def padded_passes(lengths: Sequence[int], tokens: int, most: int | None = None) -> Iterator[slice]:
    """Cuts ascending lengths into passes within a number of tokens, padding included, and a number of texts."""
    begin = 0
    for end in range(1, len(lengths) + 1):
        full = end < len(lengths) and lengths[end] * (end + 1 - begin) > tokens
        if full or end == len(lengths) or end - begin == most:
            yield slice(begin, end)
            begin = end


def texts_of(rows: Sequence[PairRow]) -> list[Text]:
    """Chosen then rejected text of each row. -> 2B texts, chosen of row i at i, rejected at B + i"""
    return [(row.prompt, row.chosen) for row in rows] + [(row.prompt, row.rejected) for row in rows]


@dataclass(frozen=True)
class Limit:
    """What one forward and backward pass may hold: pairs, and tokens of both texts; None: no limit."""

    pairs: int | None = None
    tokens: int | None = None


def pair_tokens(row: PairRow) -> int:
    """Tokens of a pair with its prompt counted once, as a packed row holds it."""
    return len(row.prompt) + len(row.chosen) + len(row.rejected)


def micro_batches(
    batch: np.ndarray, lengths: Sequence[int], ranks: int, limit: Limit, groups: Sequence[object] | None = None
) -> list[list[np.ndarray]]:
    """The rows of a minibatch by rank and micro-batch. -> per rank as many micro-batches as on every other (some empty)

    Ranks get equally many rows (one more at most) and nearly equally many tokens. Where a rank's share is more than one
    pass may hold, it is cut into passes of rows of similar length; where it is not, it stays as it was drawn. Rows of
    one of the `groups` [rows of the batch] follow each other in the cut, so that a pass computes their answers once.
    """
    shares = [np.arange(len(batch))] if ranks == 1 else _balanced_shares(lengths, ranks)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups or ()))}
    group = None if groups is None else [numbers[name] for name in groups]
    cut = [_cut_share(share, lengths, limit, group) for share in shares]
    passes = max(map(len, cut))
    nothing = np.empty(0, dtype=np.int64)
    return [[batch[part] for part in parts] + [batch[nothing]] * (passes - len(parts)) for parts in cut]


def _balanced_shares(lengths: Sequence[int], ranks: int) -> list[np.ndarray]:
    """Places by rank: the longest first, handed out forth and back, so that sums stay close."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    turns = [order[begin : begin + ranks] for begin in range(0, len(order), ranks)]
    forth_and_back = [turn if number % 2 == 0 else turn[::-1] for number, turn in enumerate(turns)]
    # a last turn that is too short serves the first ranks
    hands = [[turn[rank] for turn in forth_and_back if rank < len(turn)] for rank in range(ranks)]
    return [np.sort(np.array(hand, dtype=np.int64)) for hand in hands]


def _cut_share(
    share: np.ndarray, lengths: Sequence[int], limit: Limit, group: Sequence[int] | None
) -> list[np.ndarray]:
    pairs = limit.pairs or len(share)
    tokens = float("inf") if limit.tokens is None else limit.tokens
    if len(share) <= pairs and sum(lengths[index] for index in share) <= tokens:
        return [share]
    parts: list[list[int]] = []
    total = 0
    group = range(len(lengths)) if group is None else group
    longest: dict[int, int] = {}
    for index in share:
        longest[group[index]] = max(lengths[index], longest.get(group[index], 0))
    for index in sorted(share.tolist(), key=lambda index: (longest[group[index]], group[index], lengths[index], index)):
        if not parts or len(parts[-1]) == pairs or total + lengths[index] > tokens:
            parts.append([])
            total = 0
        parts[-1].append(index)
        total += lengths[index]
    return [np.array(part) for part in parts]


def minibatches(
    rows: int, steps: int, size: int, seed: int, groups: Sequence[object] | None = None
) -> Iterator[np.ndarray]:
    """Row indices of each step: seeded permutations one after another, so that every row is used equally often.

    `groups` [rows] names what stays together: rows of a group follow each other. Pairs of the same few answers to a
    prompt then meet in one batch, where each answer is computed once.
    """
    rng = np.random.default_rng([seed, rows])
    size = min(size, rows)
    number = np.arange(rows)
    if groups is not None:
        numbers = {group: index for index, group in enumerate(dict.fromkeys(groups))}
        number = np.array([numbers[group] for group in groups])
    order = np.empty(0, dtype=np.int64)
    for _ in range(steps):
        if len(order) < size:
            drawn = rng.permutation(rows if groups is None else len(numbers))
            place = np.empty_like(drawn)
            place[drawn] = np.arange(len(drawn))
            order = np.concatenate([order, np.argsort(place[number], kind="stable")])
        yield order[:size]
        order = order[size:]


def kept_apart(rows: Sequence[PairRow], share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rows that teach, and of those of a share of the prompts, which are looked at alone. -> [n], [m]"""
    prompts = list(dict.fromkeys(row.prompt for row in rows))
    count = round(share * len(prompts))
    everything = np.arange(len(rows))
    if count < FEWEST:
        return everything, everything[:0]
    chosen = np.random.default_rng([seed, len(prompts), 11]).permutation(len(prompts))[:count]
    apart = {prompts[index] for index in chosen}
    mask = np.array([row.prompt in apart for row in rows])
    return everything[~mask], everything[mask]


def moved(record: R, device: torch.device) -> R:
    """The record on the device; the host does not wait for the copies."""
    if device.type == "cpu":
        return record
    return over(record, {dtype: flat.to(device, non_blocking=True) for dtype, flat in flat_of(record, device).items()})


def flat_of(record: Any, device: torch.device) -> dict[torch.dtype, Tensor]:
    """All numbers of a record on the host in one tensor per type; memory that a GPU can copy while the host works."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in _tensors(record):
        by_type.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    flats = {dtype: torch.cat(parts) for dtype, parts in by_type.items()}
    return {dtype: flat.pin_memory() if device.type == "cuda" else flat for dtype, flat in flats.items()}


def over(record: R, flats: Mapping[torch.dtype, Tensor]) -> R:
    """The record whose tensors are views of these, laid out as in `flat_of`."""
    sizes: dict[torch.dtype, list[int]] = {}
    for tensor in _tensors(record):
        sizes.setdefault(tensor.dtype, []).append(tensor.numel())
    parts = {dtype: iter(flats[dtype].split(numbers)) for dtype, numbers in sizes.items()}
    return _rebuild_record(record, parts)


def _values(record: Any) -> list[Any]:
    return [getattr(record, field.name) for field in fields(record)]


def _tensors(record: Any) -> Iterator[Tensor]:
    for value in _values(record):
        if isinstance(value, Tensor):
            yield value
        elif is_dataclass(value):
            yield from _tensors(value)


def _rebuild_record(record: Any, parts: Mapping[torch.dtype, Iterator[Tensor]]) -> Any:
    values = {}
    for field, value in zip(fields(record), _values(record), strict=True):
        if isinstance(value, Tensor):
            values[field.name] = next(parts[value.dtype]).view(value.shape)
        elif is_dataclass(value):
            values[field.name] = _rebuild_record(value, parts)
    return replace(record, **values)
