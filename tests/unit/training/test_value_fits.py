"""The stage on measured values in a network's kernels: it ends at the policy that enumeration gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import Objective
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.estimates.cost_estimate import Factors, MeasuredAnswer
from pddpo_ray.theory.losses.value_stage import value_pairs, value_scale
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.models.lora import load_lora_trainer
from pddpo_ray.training.passes.log_probs import ResponseScorer
from tests.support.tiers import in_full
from tests.support.tiny_language_model import save_policy, tiny_llama

BETA = 0.2
PROMPTS = ((1, 9, 4), (1, 30, 31, 32))
ANSWERS = ((7, 8, 2), (6, 2), (12, 13, 2), (20, 21, 22, 2), (40, 2))
FACTORS: Factors = {PROMPTS[0]: np.array([1.0, 0.0]), PROMPTS[1]: np.array([1.0, 2.5])}
"""The second limit is on the second prompt alone, a set with 40 % of all prompts."""
MULTIPLIERS = np.array([0.3, 0.25])
COSTS = np.random.default_rng(5).random((2, 2, 5))
"""[I, X, Y]"""


def trainers(folder: Path, kind: str) -> LocalTrainer:
    store = ArtifactStore(folder / "artifacts")
    reference = store_reference(store, save_policy(folder / "model", seed=3))
    if kind == "adapters":
        return load_lora_trainer(store.folder(reference.path), store, reference, rank=16, alpha=32.0)
    scorer = ResponseScorer(tiny_llama(0), layout="packed" if kind == "packed" else "plain")
    return LocalTrainer(TorchEngine(scorer), store, reference)


@pytest.mark.run
@pytest.mark.parametrize("kind", ["packed", *in_full("plain", "adapters")])
def test_a_fit_on_measured_values_ends_at_the_lagrangian_policy(kind: str, tmp_path: Path) -> None:
    """Values are labels 0 and 1, as often as the chances say: base * exp(-sum_i lambda_i C_i / beta) all the same."""
    trainer = trainers(tmp_path, kind)
    measured = [
        MeasuredAnswer(1, prompt, answer, f"{x}-{y}-{label}", (label < 20 * COSTS[:, x, y]).astype(float), np.zeros(2),
                       np.zeros(2, dtype=bool))
        for x, prompt in enumerate(PROMPTS)
        for y, answer in enumerate(ANSWERS)
        for label in range(20)
    ]  # fmt: skip
    chances = np.ceil(20 * COSTS) / 20
    scale = value_scale(MULTIPLIERS, np.array([1.0, 2.5]))
    rows, margins = value_pairs(measured, MULTIPLIERS, FACTORS, scale)
    settings = FitSettings(steps=200, learning_rate=4e-3, batch_pairs=20, support=0.0)
    objective = Objective("cost", trainer.reference, BETA / scale, scale, tuple(margins), values=True)
    torch.manual_seed(0)
    result = trainer.execute(FitCommand(1, Start(trainer.reference), objective, tuple(rows), settings, 7, "policy-1"))
    texts = [(prompt, answer) for prompt in PROMPTS for answer in ANSWERS]
    ratios = (trainer.score(result.version, texts) - trainer.score(trainer.reference, texts)).reshape(2, 5)
    factors = np.array([FACTORS[prompt] for prompt in PROMPTS])
    wanted = -np.einsum("i,xi,ixy->xy", MULTIPLIERS, factors, chances) / BETA
    ratios, wanted = (table - table.mean(axis=1, keepdims=True) for table in (ratios, wanted))
    assert np.abs(wanted).max() > 1.0
    np.testing.assert_allclose(ratios, wanted, atol=0.05)
    assert result.metrics["fit/loss"] < 1e-3


@pytest.mark.full
@pytest.mark.run
@pytest.mark.parametrize("kind", ["plain", "packed", "adapters"])
def test_a_fit_on_a_computed_reward_ends_at_the_rewards_own_optimum(kind: str, tmp_path: Path) -> None:
    """Rewards of range 3, as costs -r: reference * exp(r / beta)."""
    trainer, rewards = trainers(tmp_path, kind), 3.0 * COSTS[0] - 1.0
    measured = [
        MeasuredAnswer(1, prompt, answer, f"{x}-{y}", -rewards[[x], y], np.zeros(1), np.zeros(1, dtype=bool))
        for x, prompt in enumerate(PROMPTS)
        for y, answer in enumerate(ANSWERS)
    ]
    beta = 2.0
    rows, margins = value_pairs(measured, np.ones(1), dict.fromkeys(PROMPTS, np.ones(1)), 3.0)
    settings = FitSettings(steps=200, learning_rate=4e-3, batch_pairs=20, support=0.0)
    objective = Objective("reward", trainer.reference, beta / 3.0, margins=tuple(margins), values=True)
    torch.manual_seed(0)
    result = trainer.execute(FitCommand(1, Start(trainer.reference), objective, tuple(rows), settings, 7, "reward-1"))
    texts = [(prompt, answer) for prompt in PROMPTS for answer in ANSWERS]
    ratios = (trainer.score(result.version, texts) - trainer.score(trainer.reference, texts)).reshape(2, 5)
    wanted = rewards / beta
    ratios, wanted = (table - table.mean(axis=1, keepdims=True) for table in (ratios, wanted))
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(ratios, wanted, atol=0.05)
    assert result.metrics["fit/loss"] < 1e-3
