"""Texts without padding, a shared prompt once: one long row of tokens, and the attention that keeps texts apart.

    prompt a | answer a1 | answer a2 | prompt b | answer b1 | ...        what the linear maps see, no token twice
    prompt a   answer a1                                                  what attention sees: one line per text,
    prompt a   answer a2                                                  gathered from the row, causal, padded right
    prompt b   answer b1

Where torch has attention over segments of any length (flash kernels of a GPU), queries stay as they are in the row and
keys and values alone are gathered: of a prompt its own, of an answer those of its whole text.

A token of an answer attends to its own prompt and to what was written before it in its own answer, nothing else, so
every text gets the log-probability that it has alone. The positions of an answer continue those of its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pddpo_ray.training.batches import Text, moved

ATTENTION = "pddpo_packed"
"""Name under which transformers finds the attention below."""


@dataclass(frozen=True)
class Lines:
    """Where attention finds the texts. gather [s, L]: slot in the row of each token of each line (padding: any);
    own [T]: the place among all tokens of all lines from which the output of each token of the row is taken; places
    [T, m]: all places where a token of the row is, -1 behind the last (a prompt's token is in m lines at most).
    """

    gather: Tensor
    own: Tensor
    places: Tensor

    @property
    def longest(self) -> int:
        """Tokens of a line."""
        return self.gather.shape[1]


@dataclass(frozen=True)
class Segments:
    """The same without lines: a segment is a prompt or an answer of the row, and its last query sees its last key.

    queries, keys [S + 1]: where segments begin in the row and among the keys, and the end; source [K]: slot in
    the row of each key; places [T, m]: all places among the keys where a token of the row is, -1 behind the last;
    longest: no segment has more queries or keys (a power of two, so that few values are compiled).
    """

    queries: Tensor
    keys: Tensor
    source: Tensor
    places: Tensor
    longest: int

    def narrow(self) -> Segments:
        """Ends in 32 bits, as kernels read them; they travel to the device in 64, as all numbers do."""
        return replace(self, queries=self.queries.int(), keys=self.keys.int())


@dataclass(frozen=True)
class PackedBatch:
    """n texts, s of them different, as one row of T tokens.

    ids, positions [1, T]; per response token [R] its own slot in the row, the slot whose output predicts it, the
    different text it belongs to, the token, and how often its text was given; copies [n]: which of the different texts
    each given text is.
    """

    ids: Tensor
    positions: Tensor
    lines: Lines | Segments
    slot: Tensor
    predictor: Tensor
    text: Tensor
    target: Tensor
    times: Tensor
    copies: Tensor
    texts: int

    def to(self, device: torch.device) -> PackedBatch:
        return moved(self, device)

    def __len__(self) -> int:
        return int(self.copies.shape[0])


def pack(texts: Sequence[Text], ragged: bool = False) -> PackedBatch:
    """Equal texts once, equal prompts once; answers follow their prompt in the order of `texts`; `ragged`: no lines."""
    unique = list(dict.fromkeys(texts))
    number = {text: index for index, text in enumerate(unique)}
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, (prompt, _) in enumerate(unique):
        by_prompt.setdefault(prompt, []).append(index)
    longest = max(len(prompt) + len(response) for prompt, response in unique)
    gather = np.zeros((len(unique), longest), dtype=np.int64)
    ids: list[int] = []
    # per token of the row, then per response token; concatenated at the end
    token_parts: list[tuple[np.ndarray, np.ndarray]] = []
    key_parts: list[np.ndarray] = []  # of each segment in the order of the row
    response_parts: list[tuple[np.ndarray, ...]] = []
    for prompt, members in by_prompt.items():
        start, length = len(ids), len(prompt)
        ids += prompt
        token_parts.append((np.full(length, members[0]), np.arange(length)))
        key_parts.append(np.arange(start, start + length))
        for member in members:
            response, begin = unique[member][1], len(ids)
            ids += response
            end = length + len(response)
            gather[member, :length] = np.arange(start, start + length)
            gather[member, length:end] = np.arange(begin, begin + len(response))
            token_parts.append((np.full(len(response), member), np.arange(length, end)))
            key_parts.append(gather[member, :end])
            slots, predictors = gather[member, length:end], gather[member, length - 1 : end - 1]
            words = np.array(response, dtype=np.int64)
            response_parts.append((slots, predictors, np.full(len(response), member), words))
    line, column = (np.concatenate(part) for part in zip(*token_parts, strict=True))
    lines: Lines | Segments
    if ragged:
        lines = _segments([len(segment) for segment, _ in token_parts], key_parts)
    else:
        lengths = np.array([len(prompt) + len(response) for prompt, response in unique])
        cells = np.flatnonzero(np.arange(longest) < lengths[:, None])
        places = _places(cells, gather.reshape(-1)[cells], len(ids))
        lines = Lines(*map(torch.from_numpy, (gather, line * longest + column, places)))
    # the order of the different texts, as in the padded batch, so that columns such as supports line up
    order = np.argsort(np.concatenate([part[2] for part in response_parts]), kind="stable")
    of_responses = [np.concatenate(part)[order] for part in zip(*response_parts, strict=True)]
    slot, predictor, owner, target = (torch.from_numpy(array) for array in of_responses)
    copies = np.array([number[text] for text in texts])
    return PackedBatch(
        ids=torch.tensor([ids]),
        # a token's column in its line is its position in its text
        positions=torch.from_numpy(column)[None],
        lines=lines,
        slot=slot,
        predictor=predictor,
        text=owner,
        target=target,
        times=torch.from_numpy(np.bincount(copies, minlength=len(unique)))[owner],
        copies=torch.from_numpy(copies),
        texts=len(unique),
    )


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    pddpo_lines: Lines | Segments | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention within the texts of a packed row. query, key, value [1, heads, T, d] -> [1, T, heads, d]

    Without lines it is torch's own attention, so a model that was switched to it still scores padded batches.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if pddpo_lines is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return plain
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    if isinstance(pddpo_lines, Segments):
        return _ragged_attention(query, key, value, pddpo_lines, options.get("scaling"))[None], None
    slots = pddpo_lines.gather.reshape(-1)
    picked = [_PickStates.apply(states, slots, pddpo_lines.places) for states in (query, key, value)]
    of_lines = [states.view(*pddpo_lines.gather.shape, *states.shape[1:]).transpose(1, 2) for states in picked]
    options["is_causal"] = True
    read, _ = sdpa_attention_forward(module, *of_lines, None, **options)
    return _PickFromLines.apply(read.flatten(0, 1), pddpo_lines)[None], None


def _ragged_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None) -> Tensor:
    """[T, heads, d], keys and values with as many heads or a part of them -> [T, heads, d]"""
    from torch.nn.attention.varlen import varlen_attn

    keys, values = (_PickStates.apply(states, segments.source, segments.places) for states in (key, value))
    longest = segments.longest
    read = varlen_attn(
        query, keys, values, segments.queries, segments.keys, longest, longest,
        scale=scale, window_size=(-1, 0), enable_gqa=query.shape[1] != keys.shape[1],
    )  # fmt: skip
    assert isinstance(read, Tensor)
    return read


class _PickStates(torch.autograd.Function):
    """A row's states where attention wants them: [T, heads, d] -> [K, heads, d].

    The gradient is read from where a token went. Sent back from there, as a gather's own derivative does it, it would
    be added up by atomic operations, a third of a small model's step on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, slots: Tensor, places: Tensor) -> Tensor:  # type: ignore[override]
        ctx.places = places
        return states.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        places: Tensor = ctx.places
        slopes = slope.index_select(0, places.clamp_min(0).reshape(-1)).view(*places.shape, *slope.shape[1:])
        return slopes.mul_((places >= 0)[..., None, None]).sum(dim=1), None, None


class _PickFromLines(torch.autograd.Function):
    """What attention read for each token of the row: [s * L, heads, d] -> [T, heads, d]."""

    @staticmethod
    def forward(ctx: Any, read: Tensor, lines: Lines) -> Tensor:  # type: ignore[override]
        ctx.lines = lines
        return read.index_select(0, lines.own)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        slot = ctx.lines.gather.reshape(-1)
        # of a token that is in several lines one is read
        mask = ctx.lines.own.index_select(0, slot) == torch.arange(len(slot), device=slot.device)
        return slope.index_select(0, slot).mul_(mask[:, None, None]), None


def _segments(lengths: Sequence[int], key_parts: Sequence[np.ndarray]) -> Segments:
    """Segments from each one's number of queries and its keys' slots."""
    source = np.concatenate(key_parts)
    begins = [np.cumsum([0, *sizes]) for sizes in (lengths, map(len, key_parts))]
    places = _places(np.arange(len(source)), source, sum(lengths))
    queries, keys, slots, table = (torch.from_numpy(array) for array in (*begins, source, places))
    return Segments(queries, keys, slots, table, longest=1 << (max(map(len, key_parts)) - 1).bit_length())


def _places(cells: np.ndarray, slots: np.ndarray, tokens: int) -> np.ndarray:
    """All places of each of the row's tokens, from places (`cells`) and the slot that each holds. [n], [n] -> [T, m]"""
    order = np.argsort(slots, kind="stable")
    counts = np.bincount(slots, minlength=tokens)
    places = np.full((tokens, int(counts.max())), -1, dtype=np.int64)
    places[np.arange(places.shape[1]) < counts[:, None]] = cells[order]
    return places


def can_pack(model: nn.Module) -> bool:
    """Whether the causal model's every layer is full causal attention that takes another attention function."""
    config: Any = model.config
    if not getattr(model, "_supports_attention_backend", False) or not getattr(model, "_supports_sdpa", False):
        return False
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return kinds == {"full_attention"} and (window is None or "layer_types" in vars(config))


def switch_attention(model: nn.Module) -> None:
    """Make the model's layers call `packed_attention`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, packed_attention)
    model.set_attn_implementation(ATTENTION)  # type: ignore[operator]
