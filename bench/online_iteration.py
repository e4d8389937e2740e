"""C7: one online iteration with a reward alone (sample two answers, label, fit) against TRL's OnlineDPOTrainer.

The same weights, prompts, answer lengths, pairs and optimiser steps on both sides; TRL's own training step with its
generation by transformers runs without the Trainer's loop around it. Before anything is timed, TRL's answers go
through our fit as well, and both must end at the same loss; the counted work of both must agree.

What differs is the order: TRL samples and trains batch by batch, each batch from the newest weights. We sample the
whole round from one verified version with vLLM, fit, store the new version, deliver it and verify it: all of that is in
our time.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.ratio import Ratio, assert_same, interleaved
from bench.rollout import Setting, engine_in, stored
from bench.workload import endless, prompts_of
from pddpo_ray.contracts import FitCommand, FitResult, FitSettings, RolloutEngine, Start
from pddpo_ray.records import Decoding, Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.batches import minibatches
from pddpo_ray.training.engine import adam_betas
from pddpo_ray.training.local import LocalTrainer, load_trainer

BETA, SEED, LEARNING_RATE, CANARIES = 0.1, 1, 1e-4, 8

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Size:
    """Of one iteration."""

    prompts: int = 32
    batch: int = 8
    model: Setting = field(default_factory=lambda: Setting(tokens=64))

    @property
    def steps(self) -> int:
        return self.prompts // self.batch

    def batches(self) -> list[list[int]]:
        """Which prompts go into which step, on both sides."""
        return [part.tolist() for part in minibatches(self.prompts, self.steps, self.batch, SEED)]


@dataclass(frozen=True)
class Work:
    """What one iteration did."""

    answers: int
    tokens: int
    pairs: int
    steps: int


def run(repeats: int = 5, size: Size | None = None, name: str = "C7") -> list[Ratio]:
    """CPU seconds of TRL's iteration over those of ours, one thread."""
    size = size or Size()
    with tempfile.TemporaryDirectory() as place:
        theirs = TrlOnline(size, Path(place))
        torch.set_num_threads(1)
        ours = Iteration(size, Path(place))
        work = theirs.iterate()
        rows = [pair_row(prompt, *theirs.answers[prompt.id]) for prompt in theirs.prompts]
        assert_same(theirs.loss, ours.fit(rows, ours.policy, "trl-answers").metrics["fit/loss"])
        if ours.iterate() != work:
            raise RuntimeError(f"the two sides do not do the same work: TRL does {work}")
        tokens = size.model.tokens
        what = f"one online iteration, {size.prompts} prompts, answers of {tokens} tokens: TRL OnlineDPOTrainer / ours"
        unit = ("prompts", size.prompts)
        return [interleaved(name, what, theirs.iterate, ours.iterate, repeats, floor=1.7, unit=unit)]


def pair_row(prompt: Prompt, first: Ids, second: Ids) -> PairRow:
    """A labelled pair; the first answer is preferred where both are worth the same, as in TRL."""
    chosen, rejected = (first, second) if worth(first) >= worth(second) else (second, first)
    return PairRow(prompt.id, prompt.token_ids, chosen, rejected)


def worth(ids: Sequence[int]) -> float:
    """The reward: share of different tokens."""
    return len(set(ids)) / len(ids)


def round_trips(size: Size) -> list[Prompt]:
    """Prompts that are the same tokens again after a way through text, which is how TRL takes them."""
    words = endless(size.model.vocabulary)
    prompts = [
        Prompt(prompt.id, prompt.token_ids, words.decode(list(prompt.token_ids)))
        for prompt in prompts_of(size.model.vocabulary, 2 * size.prompts)
    ]
    same = [
        prompt
        for prompt in prompts
        if tuple(words(prompt.text, add_special_tokens=False)["input_ids"]) == prompt.token_ids
    ]
    if len(same) < size.prompts:
        raise ValueError(f"{len(same)} prompts are the same after a way through text, {size.prompts} are needed")
    return same[: size.prompts]


class Iteration:
    """Ours: the engine and the trainer of a run without Ray, iteration after iteration."""

    def __init__(self, size: Size, folder: Path) -> None:
        self.size = size
        self.policy = stored(size.model.model(), folder)
        self.engine: RolloutEngine = engine_in(folder)
        store = ArtifactStore(folder / "artifacts")
        self.trainer: LocalTrainer = load_trainer(folder / "model", store, self.policy)
        self._reference = self.policy
        self._prompts = round_trips(size)
        self._calls = 0
        canaries = [Response(prompt.id, prompt, prompt.token_ids, "", 0, 0) for prompt in self._prompts[:CANARIES]]
        self._verify = DeliveryCheck(self.trainer.log_probs, canaries, tokenizer=self.engine.tokenizer)  # type: ignore[attr-defined]
        self.engine.deliver(self.policy)

    def iterate(self) -> Work:
        """Sample, label, fit, store, deliver, verify."""
        self._calls += 1
        prompts = [self._asked_anew(prompt) for prompt in self._prompts]
        drawn = self.engine.sample(prompts, range(len(prompts)), 2, Decoding(max_tokens=self.size.model.tokens))
        rows = [pair_row(prompt, one[0], other[0]) for prompt, (one, other) in zip(prompts, drawn, strict=True)]
        made = self.fit(rows, self.policy, f"policy-{self._calls}")
        self._verify(self.engine, self.engine.deliver(made.version), made.version)
        self.policy = made.version
        tokens = sum(len(row.chosen) + len(row.rejected) for row in rows)
        return Work(2 * len(rows), tokens, len(rows), int(made.metrics["fit/steps"]))

    def fit(self, rows: Sequence[PairRow], start: PolicyVersion, name: str) -> FitResult:
        """One reward fit on these pairs."""
        settings = FitSettings(
            steps=self.size.steps,
            learning_rate=LEARNING_RATE,
            batch_pairs=self.size.batch,
            support=0.0,
            max_grad_norm=1e9,
            warmup=0.0,
            schedule="constant",
        )
        objective = Objective("reward", self._reference, BETA)
        return self.trainer.execute(FitCommand(self._calls, Start(start), objective, tuple(rows), settings, SEED, name))

    def _asked_anew(self, prompt: Prompt) -> Prompt:
        """With another first token at every call: neither engine nor row store may know it from an earlier one."""
        return Prompt(f"{self._calls}-{prompt.id}", (3 + self._calls, *prompt.token_ids[1:]), "")


class TrlOnline:
    """TRL's trainer on the same weights and prompts."""

    def __init__(self, size: Size, folder: Path) -> None:
        os.environ.setdefault("TQDM_DISABLE", "1")
        from datasets import Dataset, disable_progress_bars
        from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

        disable_progress_bars()
        logging.getLogger("trl").setLevel(logging.ERROR)
        self.size = size
        self.prompts = round_trips(size)
        self.answers: dict[str, tuple[Ids, Ids]] = {}
        self.loss = 0.0
        self._batch: list[int] = []
        arguments = OnlineDPOConfig(
            output_dir=str(folder / "trl"),
            beta=BETA,
            temperature=1.0,
            max_new_tokens=size.model.tokens,
            per_device_train_batch_size=size.batch,
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        self._trainer = OnlineDPOTrainer(
            size.model.model(),
            reward_funcs=self._rewards,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": prompt.text} for prompt in self.prompts]),
            processing_class=endless(size.model.vocabulary),
        )

    def iterate(self) -> Work:
        """The steps of one iteration, each with its own answers, from the newest weights on."""
        model = self._trainer.model
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=LEARNING_RATE, betas=adam_betas(FitSettings()), weight_decay=0.0, fused=True
        )
        batches = self.size.batches()
        self.answers = {}
        for batch in batches:
            self._batch = batch
            loss = self._trainer.training_step(model, {"prompt": [self.prompts[index].text for index in batch]})
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self.loss = float(loss)
        made = [answer for pair in self.answers.values() for answer in pair]
        return Work(len(made), sum(map(len, made)), len(self.answers), len(batches))

    def _rewards(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        """What TRL asks; it keeps the answers, so that the work can be counted."""
        first, second = np.array_split(np.array(completion_ids), 2)
        for index, one, other in zip(self._batch, first.tolist(), second.tolist(), strict=True):
            self.answers[self.prompts[index].id] = (tuple(one), tuple(other))
        return [worth(ids) for ids in completion_ids]
