"""C1, G1: steps of the reward stage against TRL's DPOTrainer with precomputed reference log-probabilities.

Both sides train the same weights on the same batches of HH-RLHF pairs with the same optimiser; their losses after the
last step are compared before anything is timed. TRL runs its own collator and its own loss, without the Trainer's loop
around them. In the second row TRL also gets batches of similar length, which saves it padding; ours are as drawn.
Where Triton is installed TRL scores words with its fused kernel by itself.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.device import wall_clock
from bench.limits import SHEET_FLOPS, real_tokens, training_flops
from bench.ratio import Clock, Ratio, assert_same, cpu_seconds, interleaved, of_pairs
from bench.workload import Shape, preference_rows, tokenizer, trained_weights
from pddpo_ray.contracts import FitSettings
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import Text, minibatches, texts_of
from pddpo_ray.training.engine import TorchEngine, adam_betas
from pddpo_ray.training.fit import FrozenColumns, run_fit
from pddpo_ray.training.fit_watch import last_fifth
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts

BETA, SEED = 0.1, 1

Batches = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Sides:
    """The same steps twice; each returns the mean loss of the last fifth of them. Theirs may be given other batches."""

    rows: Sequence[PairRow]
    batches: Batches
    ours: Callable[[], float]
    theirs: Callable[[Batches], float]

    def as_drawn(self) -> float:
        """Theirs on the batches of ours."""
        return self.theirs(self.batches)

    def assert_equal(self, tolerance: float = 1e-4) -> None:
        """Raises RuntimeError if the losses after all steps differ: forward passes, gradients and updates agree."""
        assert_same(self.as_drawn(), self.ours(), tolerance)

    def of_similar_length(self) -> Batches:
        """The rows sorted by what TRL pads to, in as many batches."""
        longest = [len(row.prompt) + max(len(row.chosen), len(row.rejected)) for row in self.rows]
        order = np.argsort(longest, kind="stable")
        return [part.tolist() for part in np.array_split(order, len(self.batches))]


def run(
    vocabulary: int = 4096, repeats: int = 5, name: str = "C1", *, pairs: int = 8, steps: int = 2, floor: float = 2.1
) -> list[Ratio]:
    """CPU seconds of TRL's steps over those of ours, one thread: batches as drawn, and grouped by length for TRL."""
    torch.set_num_threads(1)
    sides = both(Shape(vocabulary), pairs, steps)
    sides.assert_equal()
    drawn, grouped = side_by_side(sides, repeats, cpu_seconds)
    what = f"reward stage on HH pairs, vocabulary {vocabulary}: TRL DPOTrainer, precomputed"
    return [
        of_pairs(name, f"{what} / ours", drawn, floor=floor, details=rates(drawn, len(sides.rows))),
        of_pairs(
            f"{name}-grouped", f"{what}, grouped by length / ours", grouped, details=rates(grouped, len(sides.rows))
        ),
    ]


def run_compiled(vocabulary: int = 4096, repeats: int = 5, *, pairs: int = 8, steps: int = 2) -> list[Ratio]:
    """CPU seconds of our steps over those with layers that torch compiled; compiling itself is not counted."""
    torch.set_num_threads(1)
    stage = reward_stage(Shape(vocabulary), pairs, steps)
    plain, compiled = (stage.steps_of(stage.shape.trained(1, False), compiled=compiled) for compiled in (False, True))
    assert_same(plain(), compiled())
    what = f"reward stage, vocabulary {vocabulary}: our layers as they are / compiled"
    unit = ("pairs", float(len(stage.rows)))
    return [interleaved("C1-compiled", what, plain, compiled, repeats, unit=unit)]


def run_on_device(
    shape: Shape,
    adapters: bool,
    repeats: int = 5,
    name: str = "G1",
    *,
    pairs: int = 32,
    steps: int = 3,
    floor: float = 1.5,
) -> list[Ratio]:
    """Wall seconds of TRL's steps over those of ours, and the share of the device's arithmetic that either uses."""
    sides = both(shape, pairs, steps, adapters=adapters)
    sides.assert_equal(shape.tolerance)
    drawn, grouped = side_by_side(sides, repeats, wall_clock(shape.device))
    work = training_flops(shape, sides.rows, adapters=adapters)
    what = f"reward stage on HH pairs, {'adapters' if adapters else 'all weights'}: TRL DPOTrainer, precomputed"
    return [
        of_pairs(name, f"{what} / ours", drawn, floor=floor, details=use(drawn, sides.rows, work)),
        of_pairs(
            f"{name}-grouped", f"{what}, grouped by length / ours", grouped, details=use(grouped, sides.rows, work)
        ),
    ]


Measured = list[tuple[float, float]]
"""Seconds of TRL and of ours, repeat by repeat."""


def side_by_side(sides: Sides, repeats: int, clock: Clock) -> tuple[Measured, Measured]:
    """TRL's batches as drawn, and grouped by length; forth and back, as in `interleaved`, with three sides."""
    alike = sides.of_similar_length()
    drawn, grouped = [], []
    for _ in range(repeats):
        forth = [clock(side) for side in (sides.as_drawn, lambda: sides.theirs(alike), sides.ours)]
        back = [clock(side) for side in (sides.ours, lambda: sides.theirs(alike), sides.as_drawn)]
        theirs, theirs_grouped, ours = (one + other for one, other in zip(forth, reversed(back), strict=True))
        drawn.append((theirs / 2, ours / 2))
        grouped.append((theirs_grouped / 2, ours / 2))
    return drawn, grouped


def rates(measured: Measured, pairs: int) -> dict[str, float]:
    """Pairs per CPU second of both sides."""
    theirs, ours = np.median(np.array(measured), axis=0)
    return {"peer pairs/CPU-s": pairs / float(theirs), "ours pairs/CPU-s": pairs / float(ours)}


def use(measured: Measured, rows: Sequence[PairRow], work: float) -> dict[str, float]:
    """Real tokens a second of both sides, and the operations that these tokens need over those of the data sheet."""
    theirs, ours = np.median(np.array(measured), axis=0)
    return {
        "peer tokens/s": real_tokens(rows) / float(theirs),
        "ours tokens/s": real_tokens(rows) / float(ours),
        "peer MFU": work / float(theirs) / SHEET_FLOPS,
        "ours MFU": work / float(ours) / SHEET_FLOPS,
    }


@dataclass(frozen=True)
class RewardStage:
    """Steps of a reward stage on rows whose reference is frozen."""

    shape: Shape
    rows: Sequence[PairRow]
    columns: FrozenColumns
    settings: FitSettings

    def steps_of(self, policy: Any, adapters: bool = False, compiled: bool = False) -> Callable[..., float]:
        """All steps of ours, or so many, from the weights that `policy` has now; each call starts there again."""
        weights = trained_weights(policy)
        engine = TorchEngine(ResponseScorer(policy))
        if compiled:
            engine.scorer.compile_layers()
        objective = Objective("reward", PolicyVersion(0, "reference", "", ""), BETA)

        def ours(steps: int | None = None) -> float:
            settings = self.settings.model_copy(update={"steps": steps or self.settings.steps})
            engine.load(weights)
            engine.begin(settings)
            loss = run_fit(engine, objective, self.rows, self.columns, settings, SEED).as_metrics()["fit/loss"]
            engine.end()
            return loss

        return ours


def reward_stage(shape: Shape, batch: int, steps: int) -> RewardStage:
    """As many rows as the steps take, and what another model of this shape says about them."""
    rows = preference_rows(shape.vocabulary, batch * steps)
    settings = FitSettings(
        steps=steps,
        learning_rate=1e-4,
        batch_pairs=batch,
        support=0.0,
        max_grad_norm=1e9,
        warmup=0.0,
        schedule="constant",
    )
    return RewardStage(shape, rows, FrozenColumns(reference_log_probs(shape, rows), {}), settings)


def both(shape: Shape, batch: int, steps: int = 2, *, adapters: bool = False) -> Sides:
    """Both sides at the same weights with the same frozen reference."""
    stage = reward_stage(shape, batch, steps)
    policy, peer = (shape.trained(1, adapters) for _ in range(2))
    weights = trained_weights(policy)
    trl = TrlSteps(peer, stage.rows, stage.columns.base_log_probs, stage.settings.learning_rate)
    drawn = [order.tolist() for order in minibatches(len(stage.rows), steps, batch, SEED)]
    return Sides(stage.rows, drawn, stage.steps_of(policy, adapters), lambda batches: trl.run(weights, batches))


def reference_log_probs(shape: Shape, rows: Sequence[PairRow]) -> dict[Text, float]:
    """What another model of this shape says about the rows' texts; it is gone afterwards."""
    texts = list(dict.fromkeys(texts_of(rows)))
    scored = score_texts(ResponseScorer(shape.build(0), "plain"), texts).tolist()
    return dict(zip(texts, scored, strict=True))


class TrlSteps:
    """TRL's trainer with its collator, its loss and AdamW, on rows that are token ids already.

    Activation checkpointing, which TRL turns on by itself, is off unless it is asked for.
    """

    def __init__(
        self,
        model: Any,
        rows: Sequence[PairRow],
        base_log_probs: Mapping[Text, float],
        learning_rate: float,
        *,
        checkpointing: bool = False,
    ) -> None:
        # the trainer's own pass over its data set shows bars and talks to nobody
        os.environ.setdefault("TQDM_DISABLE", "1")
        from datasets import Dataset, disable_progress_bars
        from trl import DPOConfig, DPOTrainer

        disable_progress_bars()
        logging.getLogger("trl").setLevel(logging.ERROR)
        self.show(rows, base_log_probs)
        arguments = DPOConfig(
            output_dir=tempfile.mkdtemp(prefix="pddpo-bench-"),
            beta=BETA,
            precompute_ref_log_probs=True,
            max_length=None,
            report_to="none",
            use_cpu=model.device.type == "cpu",
            # the weights have their type already; nothing is cast on the way
            bf16=False,
            gradient_checkpointing=checkpointing,
            disable_tqdm=True,
        )
        # the constructor wants texts; the steps below are given token ids and the reference's numbers
        one = Dataset.from_list([{"prompt": "a", "chosen": " b", "rejected": " c"}])
        self.trainer = DPOTrainer(model, args=arguments, train_dataset=one, processing_class=tokenizer(4096))
        self._learning_rate = learning_rate

    def show(self, rows: Sequence[PairRow], base_log_probs: Mapping[Text, float]) -> None:
        """These are the rows from now on."""
        self.examples = [
            {
                "prompt_ids": list(row.prompt),
                "chosen_ids": list(row.chosen),
                "rejected_ids": list(row.rejected),
                "ref_chosen_logps": base_log_probs[row.prompt, row.chosen],
                "ref_rejected_logps": base_log_probs[row.prompt, row.rejected],
            }
            for row in rows
        ]

    def loss(self, batch: Sequence[int]) -> Tensor:
        """TRL's loss of these rows."""
        trainer = self.trainer
        collated = trainer.data_collator([self.examples[index] for index in batch])
        inputs = {name: tensor.to(trainer.model.device) for name, tensor in collated.items()}
        loss: Tensor = trainer.compute_loss(trainer.model, inputs)
        return loss

    def run(self, weights: Mapping[str, Tensor], batches: Batches) -> float:
        """The steps from these weights on. -> mean loss of the last fifth of them, as a fit reports it"""
        model = self.trainer.model
        with torch.no_grad():
            for name, tensor in weights.items():
                model.get_parameter(name).copy_(tensor)
        model.train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=self._learning_rate, betas=adam_betas(FitSettings()), weight_decay=0.0, fused=True
        )
        losses = []
        for batch in batches:
            loss = self.loss(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1e9)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))
        return last_fifth(losses)
