"""Texts without padding, a shared prompt once: one long row of tokens, and the attention that keeps texts apart.

    prompt a | answer a1 | answer a2 | prompt b | answer b1 | ...        what the linear maps see, no token twice
    prompt a   answer a1                                                  what attention sees: one line per text,
    prompt a   answer a2                                                  gathered from the row, causal, padded right
    prompt b   answer b1

A token of an answer attends to its own prompt and to what was written before it in its own answer, nothing else, so
every text gets the log-probability that it has alone. The positions of an answer continue those of its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class PackedBatch:
    """n texts, s of them different, as one row of T tokens.

    ids, positions [1, T]; per response token [R] its own slot in the row, the slot whose output predicts it, the
    different text it belongs to, the token, and how often its text was given; copies [n]: which of the different texts
    each given text is.
    """

    ids: Tensor
    positions: Tensor
    lines: Lines
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


def pack(texts: Sequence[Text]) -> PackedBatch:
    """Equal texts once, equal prompts once; answers follow their prompt in the order of `texts`."""
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
    response_parts: list[tuple[np.ndarray, ...]] = []
    for prompt, members in by_prompt.items():
        start, length = len(ids), len(prompt)
        ids += prompt
        token_parts.append((np.full(length, members[0]), np.arange(length)))
        for member in members:
            response, begin = unique[member][1], len(ids)
            ids += response
            end = length + len(response)
            gather[member, :length] = np.arange(start, start + length)
            gather[member, length:end] = np.arange(begin, begin + len(response))
            token_parts.append((np.full(len(response), member), np.arange(length, end)))
            slots, predictors = gather[member, length:end], gather[member, length - 1 : end - 1]
            words = np.array(response, dtype=np.int64)
            response_parts.append((slots, predictors, np.full(len(response), member), words))
    line, column = (np.concatenate(part) for part in zip(*token_parts, strict=True))
    lengths = [len(prompt) + len(response) for prompt, response in unique]
    # the order of the different texts, as in the padded batch, so that columns such as supports line up
    order = np.argsort(np.concatenate([part[2] for part in response_parts]), kind="stable")
    of_responses = [np.concatenate(part)[order] for part in zip(*response_parts, strict=True)]
    slot, predictor, owner, target = (torch.from_numpy(array) for array in of_responses)
    copies = np.array([number[text] for text in texts])
    return PackedBatch(
        ids=torch.tensor([ids]),
        # a token's column in its line is its position in its text
        positions=torch.from_numpy(column)[None],
        lines=Lines(*map(torch.from_numpy, (gather, line * longest + column, _places(gather, lengths, len(ids))))),
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
    pddpo_lines: Lines | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention within the lines of a packed row. query, key, value [1, heads, T, d] -> [1, T, heads, d]

    Without lines it is torch's own attention, so a model that was switched to it still scores padded batches.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if pddpo_lines is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return plain
    of_lines = [_ToLines.apply(states[0].transpose(0, 1), pddpo_lines) for states in (query, key, value)]
    options["is_causal"] = True
    read, _ = sdpa_attention_forward(module, *of_lines, None, **options)
    return _FromLines.apply(read.flatten(0, 1), pddpo_lines)[None], None


class _ToLines(torch.autograd.Function):
    """A row's states in lines: [T, heads, d] -> [s, heads, L, d].

    The gradient is read from where a token went. Sent back from there, as a gather's own derivative does it, it would
    be added up by atomic operations, a third of a small model's step on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, lines: Lines) -> Tensor:  # type: ignore[override]
        ctx.lines = lines
        picked = states.index_select(0, lines.gather.reshape(-1))
        return picked.view(*lines.gather.shape, *picked.shape[1:]).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        places: Tensor = ctx.lines.places
        flat = slope.transpose(1, 2).flatten(0, 1)
        came = flat.index_select(0, places.clamp_min(0).reshape(-1)).view(*places.shape, *flat.shape[1:])
        return came.mul_((places >= 0)[..., None, None]).sum(dim=1), None


class _FromLines(torch.autograd.Function):
    """What attention read for each token of the row: [s * L, heads, d] -> [T, heads, d]."""

    @staticmethod
    def forward(ctx: Any, read: Tensor, lines: Lines) -> Tensor:  # type: ignore[override]
        ctx.lines = lines
        return read.index_select(0, lines.own)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        slot = ctx.lines.gather.reshape(-1)
        # of a token that is in several lines one is read
        taken = ctx.lines.own.index_select(0, slot) == torch.arange(len(slot), device=slot.device)
        return slope.index_select(0, slot).mul_(taken[:, None, None]), None


def _places(gather: np.ndarray, lengths: Sequence[int], tokens: int) -> np.ndarray:
    """`Lines.places` of lines of these lengths in a row of that number of tokens."""
    real = np.arange(gather.shape[1]) < np.array(lengths)[:, None]
    found = np.flatnonzero(real)
    slots = gather[real]
    order = np.argsort(slots, kind="stable")
    counts = np.bincount(slots, minlength=tokens)
    places = np.full((tokens, int(counts.max())), -1, dtype=np.int64)
    places[np.arange(places.shape[1]) < counts[:, None]] = found[order]
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
