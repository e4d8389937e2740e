"""Log-probabilities straight from hidden states: the matrix of all tokens and all words never exists whole.

Rows of hidden states go through the vocabulary in chunks. What a backward pass needs again is either kept (small),
computed again chunk by chunk (large), or, where the head itself is not trained, never needed: the derivative with
respect to a hidden state is known up to a factor as soon as its log-probability is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pddpo_ray.training.device import chunk_rows

KEEP_BYTES = 32 * 2**20
"""Log-probabilities of up to this size are kept for the backward pass instead of being computed again."""


@dataclass(frozen=True)
class SupportTable:
    """Supported words of R response tokens, a row for each, filled up to the longest row.

    word [R, K]; count [R]: how many of a row's words are its own, at least one; behind them is filling.
    """

    word: Tensor
    count: Tensor

    @classmethod
    def of(cls, counts: np.ndarray, words: np.ndarray) -> SupportTable:
        """counts [R]: words of each token; words [sum(counts)], token after token."""
        table = np.zeros((len(counts), int(counts.max())), dtype=np.int64)
        table[np.arange(table.shape[1]) < counts[:, None]] = words
        return cls(torch.from_numpy(table), torch.from_numpy(counts.astype(np.int64)))

    def part(self, begin: int, end: int) -> SupportTable:
        """The rows of tokens begin to end."""
        return SupportTable(self.word[begin:end], self.count[begin:end])

    def log_probs(self, every: Tensor) -> Tensor:
        """Log-probabilities of the supported words, -inf for filling, out of those of every word. [R, V] -> [R, K]"""
        filling = torch.arange(self.word.shape[1], device=self.word.device) >= self.count[:, None]
        return every.gather(-1, self.word).masked_fill(filling, -torch.inf)

    def log_mass(self, every: Tensor) -> Tensor:
        """Log of the sum over each row's supported words. [R, V] -> [R]"""
        return self.log_probs(every).logsumexp(dim=-1)


def response_log_probs(
    hidden: Tensor, weight: Tensor, target: Tensor, support: SupportTable | None = None, temperature: float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ weight.T / temperature) at the targets, and the log of the mass on the supported words.

    hidden [R, h], weight [V, h], target [R] -> [R], [R] or None; float32 or better, differentiable in the first two.
    """
    if support is None:
        tokens: Tensor = _ResponseHead.apply(hidden, weight, target, None, temperature)
        return tokens, None
    tokens, mass = _ResponseHead.apply(hidden, weight, target, support, temperature)
    return tokens, mass


class _ResponseHead(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        support: SupportTable | None,
        temperature: float,
    ) -> Tensor | tuple[Tensor, Tensor]:
        trains_hidden, trains_weight = ctx.needs_input_grad[:2]
        vocabulary = weight.shape[0]
        early = trains_hidden and not trains_weight and support is None
        keep = (trains_hidden or trains_weight) and not early and 4 * len(target) * vocabulary <= KEEP_BYTES
        tokens, masses, saved, slopes = [], [], [], []
        for begin, end in _chunks(len(target), weight):
            log_probs = _log_softmax(hidden[begin:end], weight, temperature)
            tokens.append(log_probs.gather(-1, target[begin:end, None])[:, 0])
            if support is not None:
                masses.append(support.part(begin, end).log_mass(log_probs))
            if early:
                expected = log_probs.exp_().to(weight.dtype) @ weight
                slopes.append(weight[target[begin:end]] - expected)
            elif keep:
                saved.append(log_probs)
            del log_probs  # before the next chunk's are made
        ctx.save_for_backward(hidden, weight, target, *saved, *slopes)
        ctx.early, ctx.kept, ctx.temperature, ctx.support = early, len(saved), temperature, support
        result = torch.cat(tokens)
        if support is None:
            return result
        mass = torch.cat(masses)
        ctx.mass = mass.detach()
        return result, mass

    @staticmethod
    def backward(ctx: Any, slope: Tensor, mass_slope: Tensor | None = None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, target, *stored = ctx.saved_tensors
        if ctx.temperature != 1.0:
            # Below are derivatives with respect to the divided logits.
            slope = slope / ctx.temperature
            mass_slope = None if mass_slope is None else mass_slope / ctx.temperature
        if ctx.early:
            slopes = torch.cat(stored)
            return (slopes * slope[:, None].to(slopes.dtype)).to(hidden.dtype), None, None, None, None
        support: SupportTable | None = ctx.support
        trains_hidden, trains_weight = ctx.needs_input_grad[:2]
        hidden_slope = torch.empty_like(hidden) if trains_hidden else None
        # Summed in float32 or better: in a narrow type what a late chunk adds would be rounded away.
        wide = torch.promote_types(weight.dtype, torch.float32)
        weight_slope = torch.zeros_like(weight, dtype=wide) if trains_weight else None
        for number, (begin, end) in enumerate(_chunks(len(target), weight)):
            part = hidden[begin:end]
            log_probs = stored[number] if ctx.kept else _log_softmax(part, weight, ctx.temperature)
            token_slope = slope[begin:end]
            both = token_slope if support is None else token_slope + mass_slope[begin:end]  # type: ignore[index]
            logit_slope = log_probs.exp().mul_(-both[:, None])
            logit_slope.scatter_add_(1, target[begin:end, None], token_slope[:, None])
            if support is not None:
                rows = support.part(begin, end)
                inside = (rows.log_probs(log_probs) - ctx.mass[begin:end, None]).exp()
                logit_slope.scatter_add_(1, rows.word, inside * mass_slope[begin:end, None])  # type: ignore[index]
            logit_slope = logit_slope.to(weight.dtype)
            if hidden_slope is not None:
                torch.mm(logit_slope, weight, out=hidden_slope[begin:end])
            if weight_slope is not None:
                weight_slope.add_(logit_slope.T @ part)
            del log_probs, logit_slope
        return hidden_slope, None if weight_slope is None else weight_slope.to(weight.dtype), None, None, None


def _chunks(rows: int, weight: Tensor) -> list[tuple[int, int]]:
    size = chunk_rows(len(weight), weight.device.type)
    return [(begin, min(rows, begin + size)) for begin in range(0, rows, size)]


def _log_softmax(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = hidden @ weight.T
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
