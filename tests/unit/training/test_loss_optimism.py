"""The XPO-style term in the fit of a language model: one step by hand, micro-batches, ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import LossOptimism, Objective, PairRow, PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.batches import Text
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import FrozenColumns, Shard, run_fit
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts
from tests.support.tiny_language_model import save_policy, tiny_llama

PROMPT = (1, 9, 4)
REFERENCE = PolicyVersion(0, "reference", "0" * 64, "reference")
ANSWERS = [(7, 8, 2), (6, 2), (12, 13, 2), (20, 21, 22, 2)]
BASELINE = tuple((PROMPT, answer) for answer in ((7, 8, 2), (30, 31, 2), (32, 2)))
ROWS = tuple(PairRow(f"r{i}", PROMPT, ANSWERS[i % 3], ANSWERS[i % 3 + 1]) for i in range(6))
ONE_STEP = FitSettings(steps=1, batch_pairs=6, max_grad_norm=1e9, learning_rate=2e-3, support=0.0)
MULTIPLIER, TEMPERATURE, ALPHA = 0.7, 0.5 / 0.7, 0.3


def log_prob(model: torch.nn.Module, response: tuple[int, ...]) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([[*PROMPT, *response]])).logits[0, len(PROMPT) - 1 : -1]
    return torch.log_softmax(logits, dim=-1).gather(-1, torch.tensor(response)[:, None]).sum()


class Recording(TorchEngine):
    """Keeps the gradient of every step, flat, before the optimiser uses it."""

    gradient: torch.Tensor

    def update(self, learning_rate: float) -> float:
        self.gradient = torch.cat([p.grad.reshape(-1).clone() for p in self._trainable if p.grad is not None])
        return super().update(learning_rate)

    def reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def _sum_gradients(self) -> None:
        """Each rank's own part; the test adds them up."""


def gradient(shard: Shard, settings: FitSettings = ONE_STEP) -> torch.Tensor:
    """Of one step of a cost fit with the term, on this rank's share."""
    engine = Recording(ResponseScorer(tiny_llama(3)), shard)
    with torch.no_grad():
        frozen: dict[Text, float] = {
            (PROMPT, answer): float(log_prob(engine.scorer.model, answer)) for answer in ANSWERS
        }
    objective = Objective("cost", REFERENCE, TEMPERATURE, MULTIPLIER)
    engine.begin(settings)
    term = LossOptimism(ALPHA, BASELINE)
    run_fit(engine, objective, ROWS, FrozenColumns(frozen, {}), settings, seed=1, optimism=term)
    return engine.gradient


@pytest.mark.run
def test_the_step_is_that_of_the_hand_written_loss() -> None:
    model = tiny_llama(3)
    frozen = {answer: float(log_prob(model, answer).detach()) for answer in ANSWERS}
    pairs = [
        -torch.nn.functional.logsigmoid(
            TEMPERATURE
            * (log_prob(model, r.chosen) - frozen[r.chosen] - log_prob(model, r.rejected) + frozen[r.rejected])
        )
        for r in ROWS
    ]
    term = torch.stack([log_prob(model, answer) for _, answer in BASELINE]).mean()
    loss = MULTIPLIER * (torch.stack(pairs).mean() + ALPHA * term)
    loss.backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    torch.testing.assert_close(gradient(Shard()), expected, atol=1e-5, rtol=1e-3)


@pytest.mark.run
def test_micro_batches_and_ranks_change_nothing() -> None:
    whole = gradient(Shard())
    torch.testing.assert_close(
        gradient(Shard(), ONE_STEP.model_copy(update={"micro_pairs": 2})), whole, atol=1e-5, rtol=1e-3
    )
    # Two ranks of three answers: the second one has a single answer and then repeats one with weight zero.
    parts = [gradient(Shard(rank, 2), ONE_STEP.model_copy(update={"micro_pairs": 1})) for rank in (0, 1)]
    torch.testing.assert_close(parts[0] + parts[1], whole, atol=1e-5, rtol=1e-3)


@pytest.fixture
def trainer(tmp_path: Path) -> LocalTrainer:
    store = ArtifactStore(tmp_path / "artifacts")
    reference = store_reference(store, save_policy(tmp_path / "model", seed=3))
    return LocalTrainer(TorchEngine(ResponseScorer(tiny_llama(0))), store, reference)


@pytest.mark.run
def test_a_fit_with_the_term_makes_the_baselines_answers_rarer_and_still_learns(trainer: LocalTrainer) -> None:
    settings = FitSettings(steps=12, learning_rate=1e-3, batch_pairs=6, support=0.0)
    objective = Objective("cost", trainer.reference, TEMPERATURE, MULTIPLIER)
    start = Start(trainer.reference)
    made = [
        trainer.execute(FitCommand(n, start, objective, ROWS, settings, 3, f"policy-{n}", term)).version
        for n, term in ((1, None), (2, LossOptimism(0.05, BASELINE)))
    ]
    fresh = [(PROMPT, answer) for answer in ((30, 31, 2), (32, 2))]
    plain, optimistic = (trainer.score(version, fresh).mean() for version in made)
    assert optimistic < plain - 0.5
    before = score_texts(ResponseScorer(tiny_llama(3)), [(PROMPT, a) for r in ROWS for a in (r.chosen, r.rejected)])
    after = trainer.score(made[1], [(PROMPT, a) for r in ROWS for a in (r.chosen, r.rejected)])
    ratios = (after - before).reshape(-1, 2)
    assert np.mean(ratios[:, 0] - ratios[:, 1]) > 0.5
