"""One fit: the loop of optimiser steps that turns a start version into the next policy.

The loop is the same for every engine (plain torch, DeepSpeed, full parameters or LoRA) and for any number of ranks:
each rank takes its share of every minibatch, and losses are divided by the *global* number of pairs and tokens, so the
sum over ranks is the loss of the whole batch. At most one model is resident: what the frozen base says about a row is a
number, computed once and passed in.

A pass over pairs is a function of tensors that lie on one device, and asks the host for nothing, so that a GPU can be
given its kernels once and replay them (`graphs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pddpo_ray.config import FitConfig
from pddpo_ray.contracts import FitSettings
from pddpo_ray.errors import RunError
from pddpo_ray.records import LossOptimism, Objective, PairRow
from pddpo_ray.theory.losses.objectives import baseline_optimism_loss, preference_loss, support_loss, value_loss
from pddpo_ray.theory.multipliers.cost_stage import cost_stage_scales
from pddpo_ray.training.batches import (
    Limit,
    Text,
    kept_apart,
    micro_batches,
    minibatches,
    pair_tokens,
    texts_of,
)
from pddpo_ray.training.fit_watch import FitCurve
from pddpo_ray.training.passes.log_probs import ResponseScorer, Support, TextPass
from pddpo_ray.training.passes.memory import recomputed_layers, tokens_within

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class PairPass:
    """What a pass over B pairs reads. base [2B]: log-probabilities of their texts under the objective's base; weights,
    margins [B]; whole [3]: pairs and response tokens of the whole minibatch, and 0 where this part of it is a stopgap.
    """

    texts: TextPass
    base: Tensor
    weights: Tensor
    margins: Tensor
    whole: Tensor

    @classmethod
    def of(
        cls,
        scorer: ResponseScorer,
        rows: Sequence[PairRow],
        *,
        base: Sequence[float],
        margins: Sequence[float] | None,
        supports: Sequence[Support] | None,
        whole: tuple[float, float, float],
    ) -> PairPass:
        """On the host."""
        numbers = (base, [row.weight for row in rows], margins or [0.0] * len(rows), whole)
        columns = (torch.tensor(column, dtype=scorer.number_type) for column in numbers)
        return cls(scorer.to_read(texts_of(rows), supports), *columns)


@dataclass(frozen=True)
class PairLoss:
    """The loss of an objective: `loss_scale` of the pairs' mean loss and `support_weight` of the tokens' mean loss."""

    scorer: ResponseScorer
    objective: Objective
    loss_scale: float = 1.0
    support_weight: float = 0.0

    def __call__(self, pair_pass: PairPass) -> tuple[Tensor, Tensor]:
        """-> this part's share of the whole minibatch's loss [], and of [pair loss, correctly ranked weight, mass off
        the support, weighted log ratios of the better answers, of the worse ones] without gradient, float64 [5]"""
        log_probs, supported, counts = self.scorer.log_probs_of(pair_pass.texts)
        chosen, rejected = (log_probs - pair_pass.base).chunk(2)
        values = bool(self.objective.values) and self.objective.margins is not None
        margins = pair_pass.margins if self.objective.margins else None
        options = {"temperature": self.objective.temperature, "margins": margins, "weights": pair_pass.weights}
        losses, metrics = (value_loss if values else preference_loss)(chosen, rejected, **options)  # type: ignore[arg-type]
        pairs, tokens, part = pair_pass.whole
        loss, off_support = self.loss_scale * losses.sum() / pairs, losses.new_zeros(())
        if supported is not None and counts is not None:
            term, support_metrics = support_loss(supported, counts, tokens=1.0)
            loss, off_support = loss + self.support_weight * term / tokens, support_metrics["off_support_per_token"]
        with torch.no_grad():
            # with measured values the margin, not the row, says which answer is better
            first = pair_pass.margins <= 0 if values else torch.ones_like(chosen, dtype=torch.bool)
            better, worse = torch.where(first, chosen, rejected), torch.where(first, rejected, chosen)
            weighted = [(column * pair_pass.weights).sum() for column in (metrics["accurate"], better, worse)]
            sums = torch.stack([losses.sum(), weighted[0], off_support, *weighted[1:]]).double()
            divided = part * sums / torch.stack([pairs, pairs, tokens, pairs, pairs])
        return part * loss, divided


@dataclass(frozen=True)
class Shard:
    """Which part of every minibatch this process takes."""

    rank: int = 0
    ranks: int = 1


class Engine(Protocol):
    """A model with its optimiser. `scorer` is what the loss calls; at most one set of weights is resident."""

    scorer: ResponseScorer
    shard: Shard

    def load(self, weights: Tensors) -> None:
        """Take over these weights. Raises ValueError if their names or shapes are not the model's."""
        ...

    def begin(self, settings: FitConfig, moments: Tensors | None = None) -> None:
        """An optimiser for the weights as they are: fresh, or with the `moments` of an earlier one."""
        ...

    def moments(self) -> dict[str, Tensor]:
        """A copy of the optimiser's moments on the CPU of the first rank. RuntimeError where they are not kept."""
        ...

    def end(self) -> None:
        """Forget the optimiser, and what else the fit alone needed."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one micro-batch."""
        ...

    def accumulate(self, loss: PairLoss, pair_pass: PairPass) -> Tensor:
        """Forward pass of pairs that are on the host, and its gradient added. -> the numbers of the loss [5]"""
        ...

    def look(self, loss: PairLoss, pair_pass: PairPass) -> Tensor:
        """The same without a gradient."""
        ...

    def update(self, learning_rate: float) -> float:
        """Sum the gradients over ranks, clip, step, forget them. Returns the norm before clipping."""
        ...

    def reduce_sum(self, values: Tensor) -> Tensor:
        """Sum over ranks."""
        ...

    def gather(self, part: np.ndarray) -> list[np.ndarray]:
        """Every rank's part, in the order of ranks."""
        ...

    def each_weight(self) -> Iterator[tuple[str, Tensor]]:
        """The trained weights by their names in the model, each whole while it is looked at; every rank takes part.

        Of weights in bfloat16 these are the float32 masters; what the model computes with is their rounding.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """A copy of them on the CPU of the first rank; the other ranks take part and get none."""
        ...


@dataclass(frozen=True)
class FrozenColumns:
    """What frozen models say about the texts of a fit's rows: keyed by text.

    `base_log_probs` are under the objective's base; `supports` under the reference (empty: no support term).
    """

    base_log_probs: Mapping[Text, float]
    supports: Mapping[Text, Support]


def run_fit(
    engine: Engine,
    objective: Objective,
    rows: Sequence[PairRow],
    columns: FrozenColumns,
    settings: FitSettings,
    seed: int,
    optimism: LossOptimism | None = None,
    name: str = "fit",
) -> FitCurve:
    """Run the steps of one fit on an engine that already holds the start weights.

    Pairs of a share of the prompts (`settings.held_out`) teach nothing: they are looked at a few times, and the engine
    ends with the weights that had the smallest loss on them. The cost stage multiplies its loss by the multiplier and
    its learning rate by min(1, multiplier), which keeps it well scaled as the multiplier goes to 0 (paper.md §6).
    """
    loss_scale, rate_scale = cost_stage_scales(objective.multiplier) if objective.multiplier is not None else (1.0, 1.0)
    limit = micro_batch_limit(engine.scorer, rows, settings)
    teach, apart = kept_apart(rows, settings.held_out, seed)
    # The weight of a batch is its expected one, not its own: the mean over batches is then the weighted mean over rows.
    mean_weight = float(np.mean([rows[i].weight for i in teach]))
    baseline = () if optimism is None else optimism.answers
    baseline_batches = minibatches(len(baseline), settings.steps, settings.batch_pairs, seed)
    loss_of = PairLoss(engine.scorer, objective, loss_scale, settings.support)
    curve = FitCurve(name, settings.steps, len(rows))
    best: dict[str, Tensor] | None = None
    if len(apart):
        curve.look(*_measure_held_out(engine, loss_of, rows, columns, apart, limit))
    # measured answers to a prompt are in several pairs each
    groups = [rows[i].prompt for i in teach] if objective.values else None
    for step, places in enumerate(minibatches(len(teach), settings.steps, settings.batch_pairs, seed, groups)):
        sums = _accumulate(engine, loss_of, rows, columns, teach[places], mean_weight, limit)
        if optimism is not None:
            _accumulate_optimism(engine, optimism, next(baseline_batches), settings, loss_scale)
        norm = engine.update(settings.learning_rate * rate_scale * schedule_factor(settings, step))
        if not math.isfinite(norm):
            raise RunError(
                f"the gradient of step {step + 1} of the {objective.stage} stage is not finite: lower the learning rate"
            )
        # The only reads of a step besides the norm: an earlier read would make the device wait for its host.
        loss, accuracy, off_support, better, worse = engine.reduce_sum(sums).tolist()
        curve.add(loss=loss, accuracy=accuracy, better=better, worse=worse, norm=norm, off_support=off_support)
        if len(apart) and curve.due() and curve.look(*_measure_held_out(engine, loss_of, rows, columns, apart, limit)):
            best = None  # freed before the next copy: every rank holds one
            best = _copy_weights(engine) if step + 1 < settings.steps else None
    if best is not None:
        engine.load(best)
    return curve


def micro_batch_limit(scorer: ResponseScorer, rows: Sequence[PairRow], settings: FitSettings) -> Limit:
    """How much one forward and backward pass may hold; layers are computed again where one pair alone is too much."""
    scorer.recompute(0)
    if settings.activation_gib is None:
        return Limit(pairs=settings.micro_pairs)
    row = max(rows, key=pair_tokens)
    largest = pair_tokens(row)
    sizes = scorer.sizes(texts_of([row]), largest)
    budget = settings.activation_gib * 2**30
    layers = recomputed_layers(budget, largest, sizes)
    scorer.recompute(layers)
    return Limit(settings.micro_pairs, max(largest, tokens_within(budget, sizes, layers)))


def schedule_factor(settings: FitConfig, step: int) -> float:
    """Learning-rate factor of a step (0-based): linear warm-up, then linear or cosine decay, or constant."""
    warmup = max(1, round(settings.warmup * settings.steps))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (settings.steps - warmup)
    match settings.schedule:
        case "constant":
            return 1.0
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        case _:
            return 1.0 - progress


def _accumulate(
    engine: Engine,
    loss: PairLoss,
    rows: Sequence[PairRow],
    columns: FrozenColumns,
    batch: np.ndarray,
    mean_weight: float,
    limit: Limit,
) -> Tensor:
    """Gradient of this rank's share of a minibatch. -> this rank's part of [loss, accuracy, off-support mass, mean log
    policy/base of the better answers, of the worse ones], where the model is"""
    pairs = len(batch) * mean_weight
    tokens = float(sum(len(rows[i].chosen) + len(rows[i].rejected) for i in batch))
    return _sum_passes(engine, loss, rows, columns, batch, (pairs, tokens), limit, engine.accumulate)


def _sum_passes(
    engine: Engine,
    loss: PairLoss,
    rows: Sequence[PairRow],
    columns: FrozenColumns,
    batch: np.ndarray,
    whole: tuple[float, float],
    limit: Limit,
    run: Callable[[PairLoss, PairPass], Tensor],
) -> Tensor:
    """The numbers of this rank's passes over its share, added up."""
    objective = loss.objective
    sums = []
    for part in _passes(engine, objective, rows, batch, limit)[engine.shard.rank]:
        # A rank that has run out of rows repeats one with weight zero: every rank takes part in every collective.
        chosen = part if len(part) else batch[:1]
        texts = texts_of([rows[i] for i in chosen])
        pair_pass = PairPass.of(
            engine.scorer,
            [rows[i] for i in chosen],
            base=[columns.base_log_probs[text] for text in texts],
            margins=[objective.margins[i] for i in chosen] if objective.margins else None,
            supports=[columns.supports[text] for text in texts] if loss.support_weight > 0 else None,
            whole=(*whole, 1.0 if len(part) else 0.0),
        )
        sums.append(run(loss, pair_pass))
    return torch.stack(sums).sum(0)


def _passes(
    engine: Engine, objective: Objective, rows: Sequence[PairRow], batch: np.ndarray, limit: Limit
) -> list[list[np.ndarray]]:
    """The rows of a batch by rank and pass; pairs of the same measured answers stay together."""
    groups = [rows[i].prompt for i in batch] if objective.values else None
    return micro_batches(batch, [pair_tokens(rows[i]) for i in batch], engine.shard.ranks, limit, groups)


def _copy_weights(engine: Engine) -> dict[str, Tensor]:
    """The trained weights as they are, on every rank, since every rank loads them again."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in engine.each_weight()}


@torch.no_grad()
def _measure_held_out(
    engine: Engine,
    loss: PairLoss,
    rows: Sequence[PairRow],
    columns: FrozenColumns,
    apart: np.ndarray,
    limit: Limit,
) -> tuple[float, float]:
    """Mean loss and accuracy of the pairs that were kept apart."""
    whole = (sum(rows[i].weight for i in apart), 1.0)
    sums = _sum_passes(engine, loss, rows, columns, apart, whole, limit, engine.look)
    mean, accuracy, *_ = engine.reduce_sum(sums).tolist()
    return mean, accuracy


def _accumulate_optimism(
    engine: Engine, optimism: LossOptimism, batch: np.ndarray, settings: FitSettings, loss_scale: float
) -> None:
    """Gradient of this rank's share of the XPO-style term, which is scaled as the pair loss is."""
    share = batch[engine.shard.rank :: engine.shard.ranks]
    largest_share = -(-len(batch) // engine.shard.ranks)
    size = settings.micro_pairs or largest_share
    for begin in range(0, largest_share, size):
        part = share[begin : begin + size]
        # As with pairs: a rank that has run out repeats an answer with weight zero.
        texts = [optimism.answers[i] for i in (part if len(part) else batch[:1])]
        log_probs = engine.scorer.log_probs(texts)[0]
        losses, _ = baseline_optimism_loss(log_probs, alpha=optimism.alpha)
        engine.backward((loss_scale if len(part) else 0.0) * losses.sum() / len(batch))
