"""C3: the most memory that tensors take during one training step, optimiser state aside.

Counted from torch's own allocation events, so it is the same on every machine and at every repeat: weights of all
models that a step needs, gradients, and the largest sum of what the step allocates on top of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.cost_stage import BETA, MULTIPLIER, every_position, long_form
from bench.device import allocated_at_most, bytes_of
from bench.ratio import Ratio, assert_same, of_pairs
from bench.reward_step import TrlSteps
from bench.workload import language_model, preference_rows
from pddpo_ray.records import PairRow
from pddpo_ray.theory.losses.objectives import preference_loss
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature
from pddpo_ray.training.batches import Text, texts_of
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts

MIB = 2**20


@dataclass(frozen=True)
class Setting:
    """Some pairs and the size of the models that train on them; models with the same seed are equal."""

    vocabulary: int = 32_000
    pairs: int = 8
    hidden: int = 256
    layers: int = 4

    @cached_property
    def rows(self) -> list[PairRow]:
        return preference_rows(self.vocabulary, self.pairs)

    @cached_property
    def texts(self) -> list[Text]:
        return texts_of(self.rows)

    def model(self, seed: int) -> Any:
        return language_model(self.vocabulary, seed, hidden=self.hidden, layers=self.layers)

    def ours(self, base: Tensor, temperature: float) -> tuple[float, np.ndarray]:
        """Loss and peak of our step of model 1 with the base's log-probabilities [n] as numbers."""
        scorer = ResponseScorer(self.model(1), "packed")

        def step() -> Tensor:
            ratios = scorer.log_probs(self.texts)[0] - base
            return preference_loss(ratios[: self.pairs], ratios[self.pairs :], temperature=temperature)[0].mean()

        return peak(step, scorer)


def run(name: str = "C3", floor: float = 2.5) -> list[Ratio]:
    """The peers' peaks over ours; 2.5 is 0.4 the other way round."""
    torch.set_num_threads(1)
    setting = Setting()
    return [*against_trl(setting, name, floor), against_three_models(setting, f"{name}-naive", floor)]


def against_trl(setting: Setting, name: str = "C3", floor: float = 2.5) -> list[Ratio]:
    """The reward stage: TRL without and with its recomputation of activations."""
    base = _scored(setting.model(0), setting.texts)
    expected, own = setting.ours(base, BETA)
    frozen = dict(zip(setting.texts, base.tolist(), strict=True))
    found = []
    for suffix, way, again in (("", "", False), ("-recomputed", ", activations computed again", True)):
        trl = TrlSteps(setting.model(1), setting.rows, frozen, 1e-4, checkpointing=again)
        if again:  # as the Trainer does before its first step
            trl.trainer.model.gradient_checkpointing_enable({"use_reentrant": False})
        trl.trainer.model.train()
        loss, theirs = peak(partial(trl.loss, range(setting.pairs)), trl.trainer.model)
        assert_same(loss, expected)
        what = f"peak of a reward step, vocabulary {setting.vocabulary}: TRL DPOTrainer, precomputed{way} / ours"
        found.append(_row(name + suffix, what, theirs, own, None if again else floor))
    return found


def against_three_models(setting: Setting, name: str = "C3-naive", floor: float = 2.5) -> Ratio:
    """The cost stage: reference, reward policy and policy in memory at once, every position's logits whole."""
    models = policy, _, reward_policy = setting.model(1), setting.model(2), setting.model(0)
    loss, theirs = peak(lambda: _three_models(models, setting.texts), policy, resident=models)
    expected, own = setting.ours(_scored(reward_policy, setting.texts), cost_temperature(BETA, MULTIPLIER))
    assert_same(loss, expected)
    what = f"peak of a cost step, vocabulary {setting.vocabulary}: plain three-model loop / ours"
    return _row(name, what, theirs, own, floor)


def _scored(model: nn.Module, texts: Sequence[Text]) -> Tensor:
    """Frozen log-probabilities. -> [n]"""
    return torch.from_numpy(score_texts(ResponseScorer(model, "plain"), texts)).float()


def peak(step: Callable[[], Tensor], model: nn.Module, resident: Sequence[nn.Module] = ()) -> tuple[float, np.ndarray]:
    """-> (loss, [bytes of weights and gradients, largest bytes on top of them]) of a forward and a backward pass.

    `resident`: every model that must be in memory, the trained one among them; by default that one alone.
    """
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    losses = []

    def forth_and_back() -> None:
        loss = step()
        loss.backward()
        losses.append(float(loss.detach()))

    most = allocated_at_most(forth_and_back, "cpu")
    held = bytes_of(*(resident or (model,))) + bytes_of(model)
    return losses[0], np.array([held, most])


def _three_models(models: Sequence[nn.Module], texts: list[Text]) -> Tensor:
    """Loss of the cost stage from reference, reward policy and policy (given as policy, reference, reward policy)."""
    with torch.no_grad():
        frozen = [every_position(model, texts) for model in models[1:]]
    return long_form(every_position(models[0], texts), *frozen)


def _row(name: str, what: str, theirs: np.ndarray, ours: np.ndarray, floor: float | None) -> Ratio:
    details = {
        "ours of the peer's": float(ours.sum() / theirs.sum()),
        "without weights and gradients": float(ours[1] / theirs[1]),
        "peer MiB": float(theirs.sum()) / MIB,
        "ours MiB": float(ours.sum()) / MIB,
        "peer MiB without": float(theirs[1]) / MIB,
        "ours MiB without": float(ours[1]) / MIB,
    }
    return of_pairs(name, what, [(float(theirs.sum()), float(ours.sum()))], floor=floor, details=details)
