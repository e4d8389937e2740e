"""Log-probabilities straight from hidden states: the matrix of all tokens and all words never exists whole.

Rows of hidden states go through the vocabulary in chunks. What a backward pass needs again is either kept (small),
computed again chunk by chunk (large), or, where the head itself is not trained, never needed: the derivative with
respect to a hidden state is known up to a factor as soon as its log-probability is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pddpo_ray.training.memory import CHUNK_BYTES

KEEP_BYTES = 32 * 2**20
"""Log-probabilities of up to this size are kept for the backward pass instead of being computed again."""


@dataclass(frozen=True)
class SupportIndex:
    """Supported words of R response tokens: entry j says that `word[j]` belongs to the support of token `row[j]`.

    Rows ascend, and every row has at least one word.
    """

    row: Tensor
    word: Tensor

    def to(self, device: torch.device) -> SupportIndex:
        return SupportIndex(self.row.to(device), self.word.to(device))

    def part(self, begin: int, end: int) -> SupportIndex:
        """The entries of tokens begin to end, rows counted from begin."""
        first, last = torch.searchsorted(self.row, torch.tensor([begin, end], device=self.row.device)).tolist()
        return SupportIndex(self.row[first:last] - begin, self.word[first:last])


def response_log_probs(
    hidden: Tensor, weight: Tensor, target: Tensor, support: SupportIndex | None = None, temperature: float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ weight.T / temperature) at the targets, and the log of the mass on the supported words.

    hidden [R, h], weight [V, h], target [R] -> [R], [R] or None; float32 or better, differentiable in the first two.
    """
    if support is None:
        tokens: Tensor = _ResponseHead.apply(hidden, weight, target, None, None, temperature)
        return tokens, None
    tokens, mass = _ResponseHead.apply(hidden, weight, target, support.row, support.word, temperature)
    return tokens, mass


class _ResponseHead(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        row: Tensor | None,
        word: Tensor | None,
        temperature: float,
    ) -> Tensor | tuple[Tensor, Tensor]:
        support = None if row is None or word is None else SupportIndex(row, word)
        trains_hidden, trains_weight = ctx.needs_input_grad[:2]
        vocabulary = weight.shape[0]
        early = trains_hidden and not trains_weight and support is None
        keep = (trains_hidden or trains_weight) and not early and 4 * len(target) * vocabulary <= KEEP_BYTES
        tokens, masses, kept, slopes = [], [], [], []
        for begin, end in _chunks(len(target), vocabulary):
            log_probs = _log_softmax(hidden[begin:end], weight, temperature)
            tokens.append(log_probs.gather(-1, target[begin:end, None])[:, 0])
            if support is not None:
                masses.append(_log_mass(log_probs, support.part(begin, end)))
            if early:
                expected = log_probs.exp_().to(weight.dtype) @ weight
                slopes.append(weight[target[begin:end]] - expected)
            elif keep:
                kept.append(log_probs)
        ctx.save_for_backward(hidden, weight, target, row, word, *kept, *slopes)
        ctx.early, ctx.kept, ctx.temperature = early, len(kept), temperature
        result = torch.cat(tokens)
        if support is None:
            return result
        mass = torch.cat(masses)
        ctx.mass = mass.detach()
        return result, mass

    @staticmethod
    def backward(ctx: Any, slope: Tensor, mass_slope: Tensor | None = None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, target, row, word, *stored = ctx.saved_tensors
        if ctx.temperature != 1.0:
            # Below are derivatives with respect to the divided logits.
            slope = slope / ctx.temperature
            mass_slope = None if mass_slope is None else mass_slope / ctx.temperature
        if ctx.early:
            slopes = torch.cat(stored)
            return (slopes * slope[:, None].to(slopes.dtype)).to(hidden.dtype), None, None, None, None, None
        support = None if row is None else SupportIndex(row, word)
        trains_hidden, trains_weight = ctx.needs_input_grad[:2]
        hidden_slope = torch.empty_like(hidden) if trains_hidden else None
        weight_slope = torch.zeros_like(weight) if trains_weight else None
        for number, (begin, end) in enumerate(_chunks(len(target), weight.shape[0])):
            part = hidden[begin:end]
            log_probs = stored[number] if ctx.kept else _log_softmax(part, weight, ctx.temperature)
            own = slope[begin:end]
            both = own if support is None else own + mass_slope[begin:end]  # type: ignore[index]
            logit_slope = log_probs.exp().mul_(-both[:, None])
            logit_slope.scatter_add_(1, target[begin:end, None], own[:, None])
            if support is not None:
                index = support.part(begin, end)
                inside = (log_probs[index.row, index.word] - ctx.mass[begin:end][index.row]).exp()
                logit_slope[index.row, index.word] += inside * mass_slope[begin:end][index.row]  # type: ignore[index]
            logit_slope = logit_slope.to(weight.dtype)
            if hidden_slope is not None:
                torch.mm(logit_slope, weight, out=hidden_slope[begin:end])
            if weight_slope is not None:
                weight_slope.addmm_(logit_slope.T, part)
        return hidden_slope, weight_slope, None, None, None, None


def chunk_rows(vocabulary: int) -> int:
    """Tokens whose logits make one chunk."""
    return max(16, CHUNK_BYTES // (4 * vocabulary))


def _chunks(rows: int, vocabulary: int) -> list[tuple[int, int]]:
    size = chunk_rows(vocabulary)
    return [(begin, min(rows, begin + size)) for begin in range(0, rows, size)]


def _log_softmax(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = hidden @ weight.T
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)


def _log_mass(log_probs: Tensor, support: SupportIndex) -> Tensor:
    """Log of the sum over each row's supported words, stable for tiny masses."""
    entries = log_probs[support.row, support.word]
    largest = entries.new_full((len(log_probs),), -torch.inf).scatter_reduce(0, support.row, entries, "amax")
    total = torch.zeros_like(largest).index_add(0, support.row, (entries - largest[support.row]).exp())
    return total.log() + largest
