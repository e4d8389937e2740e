"""G3: from hidden states to the log-probabilities of an answer's words, forward and backward, without the model below.

Ours makes logits in chunks; the peers are the whole matrix of logits, and TRL's fused head (its Triton kernel on a GPU
with Triton, else its own chunks). Log-probabilities and the slope in the hidden states must agree before anything is
timed. The head is frozen, as under adapters, or trained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bench.device import allocated_at_most, wall_clock
from bench.ratio import Ratio, interleaved, of_pairs
from bench.workload import Shape
from pddpo_ray.training.passes.response_head import response_log_probs

MIB = 2**20
TRL_WORDS = 32_768
"""Words of one of TRL's tiles, as in its trainers."""

LogProbs = Callable[[Tensor, Tensor, Tensor], Tensor]
"""hidden [R, h], weight [V, h], target [R] -> [R]"""


def run(shape: Shape, trained: bool, repeats: int = 5, name: str = "G3", *, tokens: int = 4096) -> list[Ratio]:
    """Wall seconds and peak bytes of both peers over those of ours."""
    states = States(shape, trained, tokens)
    found = []
    for peer, of_peer, floors in (
        ("whole", whole_matrix, (1 / 1.1, 5.0)),
        ("trl", trl_head(), (None, None)),
    ):
        states.assert_equal(of_peer)
        found += against(peer, of_peer, states, repeats, name, floors)
    return found


def against(
    peer: str, of_peer: LogProbs, states: States, repeats: int, name: str, floors: tuple[float | None, float | None]
) -> list[Ratio]:
    """Seconds and bytes of one peer."""
    sides = partial(states.forth_and_back, of_peer), partial(states.forth_and_back, ours)
    device, size = (
        states.shape.device,
        f"{states.shape.vocabulary} words, head {'trained' if states.trained else 'frozen'}",
    )
    what = f"log-probabilities, {size}: {'whole matrix' if peer == 'whole' else 'TRL'} / ours"
    unit = ("tokens", len(states.target))
    seconds = interleaved(f"{name}-{peer}", what, *sides, repeats, floor=floors[0], unit=unit, clock=wall_clock(device))
    theirs, own = (allocated_at_most(side, device) for side in sides)
    details = {"peer MiB": theirs / MIB, "ours MiB": own / MIB}
    memory = of_pairs(f"{name}-{peer}-memory", f"peak of {what}", [(theirs, own)], floor=floors[1], details=details)
    return [seconds, memory]


class States:
    """Random hidden states, a head and the words that came."""

    def __init__(self, shape: Shape, trained: bool, tokens: int) -> None:
        self.shape, self.trained = shape, trained
        chance, device = torch.Generator(shape.device).manual_seed(0), torch.device(shape.device)
        self.hidden, self.weight = (
            torch.randn(lines, shape.hidden, generator=chance, device=device, dtype=shape.dtype)
            for lines in (tokens, shape.vocabulary)
        )
        self.weight *= shape.initial
        self.hidden.requires_grad_()
        self.weight.requires_grad_(trained)
        self.target = torch.randint(shape.vocabulary, (tokens,), generator=chance, device=device)

    def forth_and_back(self, log_probs: LogProbs) -> Tensor:
        """-> [R] log-probabilities; the slopes are left at hidden states and head."""
        self.hidden.grad = self.weight.grad = None
        made = log_probs(self.hidden, self.weight, self.target)
        made.sum().backward()  # type: ignore[no-untyped-call]
        return made.detach()

    def assert_equal(self, other: LogProbs) -> None:
        """Raises RuntimeError if log-probabilities or slopes differ from ours."""
        found = []
        for side in (other, ours):
            made = self.forth_and_back(side)
            found.append([made, *(tensor.grad for tensor in (self.hidden, self.weight) if tensor.grad is not None)])
        for theirs, own in zip(*found, strict=True):
            largest = float((theirs.float() - own.float()).abs().max() / theirs.float().abs().max())
            if not largest <= self.shape.tolerance:
                raise RuntimeError(f"the two sides do not compute the same: they differ by {largest} of the largest")


def ours(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return response_log_probs(hidden, weight, target)[0]


def whole_matrix(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    log_softmax = torch.log_softmax((hidden @ weight.T).float(), dim=-1)
    return log_softmax.gather(-1, target[:, None])[:, 0]


def trl_head() -> LogProbs:
    """TRL's, with the arguments of its trainers but without the measures that they take of every word."""
    from trl.kernels import ChunkedLogProbFunction

    def log_probs(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        made: Tensor = ChunkedLogProbFunction.apply(
            hidden, weight, None, target, 1.0, TRL_WORDS, None, 1.0, ("log_probs",)
        )[0]
        return made

    return log_probs
