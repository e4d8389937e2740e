"""C2 and G2: one cost stage with frozen numbers in columns against the plain loop over three models.

The plain loop is what a direct port of the paper's loss does: reference, reward policy and policy are all evaluated in
every step, on every position of both texts. Both sides start from the same weights, see the same batches and take the
same optimiser steps; their losses are compared before anything is timed. Our side's time includes the columns.

On a GPU the peak of a stage is compared as well: weights of every model that a side keeps, and the most that its steps
allocate on top of them (activations, logits, gradients, optimiser state).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.device import GIB, allocated_at_most, bytes_of, wall_clock
from bench.ratio import Ratio, assert_same, interleaved, of_pairs
from bench.workload import Shape, preference_rows, trained_weights
from pddpo_ray.contracts import FitSettings
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import Text, collate, minibatches, texts_of
from pddpo_ray.training.engine import TorchEngine, adam_betas
from pddpo_ray.training.fit import FrozenColumns, run_fit, schedule_factor
from pddpo_ray.training.fit_watch import last_fifth
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts

BETA, MULTIPLIER, SEED, EPOCHS = 0.1, 0.8, 1, 3


def run(vocabulary: int = 4096, repeats: int = 5, name: str = "C2", pairs: int = 4, floor: float = 2.2) -> Ratio:
    """CPU seconds of the plain loop over those of the columns, one thread."""
    torch.set_num_threads(1)
    stage = CostStage(Shape(vocabulary), pairs, min(8, pairs))
    stage.assert_equal()
    what = f"cost stage on HH pairs, vocabulary {vocabulary}: plain three-model loop / ours"
    unit = ("pairs", EPOCHS * pairs)
    return interleaved(name, what, stage.three_models, stage.columns, repeats, floor=floor, unit=unit)


def run_on_device(
    shape: Shape,
    adapters: bool,
    repeats: int = 5,
    name: str = "G2",
    *,
    pairs: int = 48,
    batch: int = 16,
    floors: tuple[float, float] = (2.0, 2.0),
) -> list[Ratio]:
    """Wall seconds and peak memory of the plain loop over those of the columns."""
    stage = CostStage(shape, pairs, batch, adapters=adapters)
    stage.assert_equal()
    trained = "adapters" if adapters else "all weights"
    what = f"cost stage on HH pairs, {trained}: plain three-model loop / ours"
    unit, clock = ("pairs", EPOCHS * pairs), wall_clock(shape.device)
    seconds = interleaved(
        name, what, stage.three_models, stage.columns, repeats, floor=floors[0], unit=unit, clock=clock
    )
    theirs, ours = stage.peaks()
    details = {"peer GiB": theirs / GIB, "ours GiB": ours / GIB}
    return [
        seconds,
        of_pairs(f"{name}-memory", f"peak of a {what}", [(theirs, ours)], floor=floors[1], details=details),
    ]


class CostStage:
    """The same stage twice, from the same weights on; either returns the mean loss of its last steps."""

    def __init__(self, shape: Shape, pairs: int, batch: int, *, adapters: bool = False) -> None:
        self.shape = shape
        self.rows = preference_rows(shape.vocabulary, pairs)
        self.settings = FitSettings(
            steps=EPOCHS * pairs // batch,
            learning_rate=1e-4,
            batch_pairs=batch,
            support=0.0,
            max_grad_norm=1e9,
        )
        self.reference = shape.build(0)
        self.reward_policy, self.policy = (shape.trained(1, adapters) for _ in range(2))
        self.start = trained_weights(self.policy)
        self.engine = TorchEngine(ResponseScorer(self.policy))

    def assert_equal(self) -> None:
        """Raises RuntimeError if the losses differ: forward passes, gradients and updates agree."""
        assert_same(self.three_models(), self.columns(), self.shape.tolerance)

    def columns(self) -> float:
        """Ours: the reward policy's numbers once, then steps of one model."""
        self.engine.load(self.start)
        texts = list(dict.fromkeys(texts_of(self.rows)))
        base = dict(zip(texts, score_texts(self.engine.scorer, texts).tolist(), strict=True))
        self.engine.begin(self.settings)
        objective = Objective("cost", PolicyVersion(1, "reward-1", "", ""), BETA / MULTIPLIER, MULTIPLIER)
        curve = run_fit(self.engine, objective, self.rows, FrozenColumns(base, {}), self.settings, SEED)
        return curve.as_metrics()["fit/loss"]

    def three_models(self) -> float:
        """The plain loop."""
        self.engine.load(self.start)
        return three_model_loop(self.policy, (self.reference, self.reward_policy), self.rows, self.settings)

    def peaks(self) -> tuple[float, float]:
        """Bytes of the plain loop and of ours at their highest."""
        peaks = []
        for side, models in (
            (self.three_models, (self.reference, self.reward_policy, self.policy)),
            (self.columns, (self.policy,)),
        ):
            self._forget()
            peaks.append(bytes_of(*models) + allocated_at_most(side, self.shape.device))
        return peaks[0], peaks[1]

    def _forget(self) -> None:
        """Gradients and optimiser state of the side that ran before."""
        self.policy.zero_grad(set_to_none=True)
        self.engine = type(self.engine)(self.engine.scorer)


def three_model_loop(policy: Any, frozen: tuple[Any, Any], rows: Sequence[PairRow], settings: FitSettings) -> float:
    """Steps of the policy beside (reference, reward policy). -> mean loss of the last fifth of them"""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1.0, betas=adam_betas(settings), weight_decay=0.0, fused=True)
    losses = []
    for step, indices in enumerate(minibatches(len(rows), settings.steps, settings.batch_pairs, SEED)):
        texts = texts_of([rows[i] for i in indices])
        with torch.no_grad():
            numbers = [every_position(model, texts) for model in frozen]
        loss = long_form(every_position(policy, texts), *numbers)
        optimizer.zero_grad(set_to_none=True)
        (MULTIPLIER * loss).backward()
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * MULTIPLIER * schedule_factor(settings, step)
        optimizer.step()
        losses.append(float(loss.detach()))
    return last_fifth(losses)


def long_form(policy: Tensor, reference: Tensor, reward_policy: Tensor) -> Tensor:
    """The paper's loss with the reference in it. Log-probabilities [2B], chosen first -> []"""
    cost = (BETA * (reward_policy - reference) - BETA * (policy - reference)) / MULTIPLIER
    half = len(cost) // 2
    return torch.nn.functional.softplus(-(cost[half:] - cost[:half])).mean()


def every_position(model: Any, texts: list[Text]) -> Tensor:
    """Log-probabilities from the whole vocabulary matrix of the padded batch. -> [n]"""
    batch = collate(texts).to(model.device)
    log_softmax = torch.log_softmax(model(input_ids=batch.ids).logits.float(), dim=-1)
    picked = log_softmax[batch.row, batch.column].gather(-1, batch.target[:, None])[:, 0]
    return picked.new_zeros(len(texts)).index_add(0, batch.row, picked)
