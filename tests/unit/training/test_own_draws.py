"""A price on length, learned from a model's own draws, shortens fresh draws to prompts that no fit saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import Objective
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.estimates.cost_estimate import MeasuredAnswer
from pddpo_ray.theory.losses.value_stage import value_pairs
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.passes.log_probs import ResponseScorer
from tests.support.tiny_language_model import tiny_llama

END, LONGEST = 2, 40
Tokens = tuple[int, ...]


def prompts(count: int, seed: int) -> list[Tokens]:
    draws = np.random.default_rng(seed)
    return [(1, *draws.integers(5, 50, 3).tolist()) for _ in range(count)]


def speaking_model() -> LlamaForCausalLM:
    """A tiny model that has learned to end after any word with a chance of about one in six."""
    torch.manual_seed(0)
    model, draws = tiny_llama(0), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(150):
        ids = draws.integers(5, 50, (32, 24))
        ids[:, 0] = 1
        ids[:, 4:][draws.random((32, 20)) < 1 / 6] = END
        batch = torch.from_numpy(ids)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def drawn(model: torch.nn.Module, asked: list[Tokens], each: int, seed: int) -> list[Tokens]:
    """`each` draws to each prompt, one after another."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.tensor([prompt for prompt in asked for _ in range(each)])
    begin = ids.shape[1]
    for _ in range(LONGEST):
        chances = model(input_ids=ids).logits[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], 1)
    answers = [row[begin:] for row in ids.tolist()]
    return [tuple(row[: row.index(END) + 1] if END in row else row) for row in answers]


@pytest.mark.full
@pytest.mark.slow
def test_a_price_on_length_shortens_fresh_draws(tmp_path: Path) -> None:
    """At 0.1 nats a token on lengths of a geometric law with a chance of 1/6 to end, the best policy ends with a chance
    of 1 - 5/6 e^-0.1 = 0.25: a third fewer tokens. 48 prompts with four draws each are seen twice."""
    model = speaking_model()
    model.save_pretrained(tmp_path / "model")
    store = ArtifactStore(tmp_path / "artifacts")
    reference = store_reference(store, tmp_path / "model")
    trainer = LocalTrainer(TorchEngine(ResponseScorer(model, layout="plain")), store, reference)
    asked, fresh = prompts(48, seed=1), prompts(200, seed=2)
    answers = drawn(model, asked, 4, seed=3)
    before = [len(answer) for answer in drawn(model, fresh, 2, seed=4)]
    no = np.zeros(1, dtype=bool)
    measured = [
        MeasuredAnswer(0, asked[index // 4], answer, str(index), np.array([float(len(answer))]), np.zeros(1), no)
        for index, answer in enumerate(answers)
    ]
    rows, margins = value_pairs(measured, np.ones(1), dict.fromkeys(asked, np.ones(1)), 10.0)
    # u = 1/s * (h' - h) and t = (C - C')/s at s = 10: a nat for each unit of lambda C / beta = 0.1 tokens
    margins = [0.1 * margin for margin in margins]
    objective = Objective("cost", reference, 1.0 / 10.0, 10.0, tuple(margins), values=True)
    steps = round(2 * len(rows) / 24)
    settings = FitSettings(steps=steps, learning_rate=2e-3, batch_pairs=24, support=0.0, held_out=0.1)
    result = trainer.execute(FitCommand(1, Start(reference), objective, tuple(rows), settings, 7, "policy-1"))
    after = [len(answer) for answer in drawn(model, fresh, 2, seed=5)]
    error = float(np.hypot(np.std(before), np.std(after)) / len(before) ** 0.5)
    assert np.mean(after) < np.mean(before) - 3.0 * error
    assert result.metrics["fit/held_out_loss"] < result.metrics["fit/held_out_start"]
    assert result.metrics["fit/better"] > result.metrics["fit/worse"]
    assert len(result.curve["loss"]) == steps
