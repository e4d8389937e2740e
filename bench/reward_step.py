"""C1: steps of the reward stage against TRL's DPOTrainer with precomputed reference log-probabilities.

Both sides train the same weights on the same batches of HH-RLHF pairs with the same optimiser; their losses after the
last step are compared before anything is timed. TRL runs its own collator and its own loss, without the Trainer's loop
around them. In the second row TRL also gets batches of similar length, which saves it padding; ours are as drawn.
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

from bench.ratio import Ratio, assert_same, cpu_seconds, of_pairs
from bench.workload import language_model, preference_rows, tokenizer
from pddpo_ray.parts import FitSettings
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import minibatches, texts_of
from pddpo_ray.training.engine import ADAM_BETAS, TorchEngine
from pddpo_ray.training.fit import FrozenColumns, run_fit
from pddpo_ray.training.log_probs import ResponseScorer, score_texts

BETA, SEED = 0.1, 1

Batches = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Sides:
    """The same steps twice; each returns the loss of its last step. Theirs may be given other batches."""

    rows: Sequence[PairRow]
    batches: Batches
    ours: Callable[[], float]
    theirs: Callable[[Batches], float]

    def as_drawn(self) -> float:
        """Theirs on the batches of ours."""
        return self.theirs(self.batches)

    def assert_equal(self) -> None:
        """Raises RuntimeError if the losses after all steps differ: forward passes, gradients and updates agree."""
        assert_same(self.as_drawn(), self.ours())

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
    sides = both(vocabulary, pairs, steps)
    sides.assert_equal()
    alike = sides.of_similar_length()
    drawn, grouped = [], []
    for _ in range(repeats):
        # forth and back, as in `interleaved`, with three sides
        forth = [cpu_seconds(side) for side in (sides.as_drawn, lambda: sides.theirs(alike), sides.ours)]
        back = [cpu_seconds(side) for side in (sides.ours, lambda: sides.theirs(alike), sides.as_drawn)]
        theirs, theirs_grouped, ours = (one + other for one, other in zip(forth, reversed(back), strict=True))
        drawn.append((theirs / 2, ours / 2))
        grouped.append((theirs_grouped / 2, ours / 2))
    what = f"reward stage on HH pairs, vocabulary {vocabulary}: TRL DPOTrainer, precomputed"
    return [
        of_pairs(name, f"{what} / ours", drawn, floor=floor, details=rates(drawn, len(sides.rows))),
        of_pairs(
            f"{name}-grouped", f"{what}, grouped by length / ours", grouped, details=rates(grouped, len(sides.rows))
        ),
    ]


def rates(measured: list[tuple[float, float]], pairs: int) -> dict[str, float]:
    """Pairs per CPU second of both sides."""
    theirs, ours = np.median(np.array(measured), axis=0)
    return {"peer pairs/CPU-s": pairs / float(theirs), "ours pairs/CPU-s": pairs / float(ours)}


def both(vocabulary: int, batch: int, steps: int = 2, *, hidden: int = 256, layers: int = 4) -> Sides:
    """Both sides at the same weights with the same frozen reference."""
    rows = preference_rows(vocabulary, batch * steps)
    settings = FitSettings(
        steps=steps,
        learning_rate=1e-4,
        batch_pairs=batch,
        support_weight=0.0,
        max_grad_norm=1e9,
        warmup=0.0,
        schedule="constant",
    )
    reference, policy, peer = (language_model(vocabulary, seed, hidden=hidden, layers=layers) for seed in (0, 1, 1))
    weights = {key: tensor.detach().clone() for key, tensor in policy.named_parameters()}
    texts = list(dict.fromkeys(texts_of(rows)))
    scored = score_texts(ResponseScorer(reference, "plain"), texts).tolist()
    columns = FrozenColumns(dict(zip(texts, scored, strict=True)), {})
    engine = TorchEngine(ResponseScorer(policy))
    objective = Objective("reward", PolicyVersion(0, "reference", "", ""), BETA)
    trl = TrlSteps(peer, rows, columns.base_log_probs, settings.learning_rate)

    def ours() -> float:
        engine.load(weights)
        engine.begin(settings)
        return run_fit(engine, objective, rows, columns, settings, SEED)["fit/loss"]

    drawn = [order.tolist() for order in minibatches(len(rows), steps, batch, SEED)]
    return Sides(rows, drawn, ours, lambda batches: trl.run(weights, batches))


class TrlSteps:
    """TRL's trainer with its collator, its loss and AdamW, on rows that are token ids already.

    Activation checkpointing, which TRL turns on by itself, is off unless it is asked for.
    """

    def __init__(
        self,
        model: Any,
        rows: Sequence[PairRow],
        base_log_probs: Mapping[tuple[tuple[int, ...], tuple[int, ...]], float],
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
        arguments = DPOConfig(
            output_dir=tempfile.mkdtemp(prefix="pddpo-bench-"),
            beta=BETA,
            precompute_ref_log_probs=True,
            max_length=None,
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=checkpointing,
            disable_tqdm=True,
        )
        # the constructor wants texts; the steps below are given token ids and the reference's numbers
        one = Dataset.from_list([{"prompt": "a", "chosen": " b", "rejected": " c"}])
        self.trainer = DPOTrainer(model, args=arguments, train_dataset=one, processing_class=tokenizer(4096))
        self._learning_rate = learning_rate

    def loss(self, batch: Sequence[int]) -> Tensor:
        """TRL's loss of these rows."""
        trainer = self.trainer
        inputs = trainer.data_collator([self.examples[index] for index in batch])
        loss: Tensor = trainer.compute_loss(trainer.model, inputs)
        return loss

    def run(self, weights: Mapping[str, Tensor], batches: Batches) -> float:
        """The steps from these weights on. -> loss of the last one"""
        model = self.trainer.model
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                tensor.copy_(weights[name])
        model.train()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=self._learning_rate, betas=ADAM_BETAS, weight_decay=0.0, fused=True
        )
        loss = torch.zeros(())
        for batch in batches:
            loss = self.loss(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())
