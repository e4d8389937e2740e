"""vLLM and the trainer mean the same policy at a temperature: scores, returned log-probabilities, samples, canaries.

Each engine is started at the temperature that it is tested at, one with whole weights and one with adapters.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import Decoding, Objective, PairRow, Prompt, Response
from pddpo_ray.rollout.checkpoint import tokenizer_fingerprint
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import load_trainer, store_reference
from pddpo_ray.training.models.lora import load_lora_trainer
from tests.support.engine_process import adapters_process, vllm_process
from tests.support.tiny_language_model import save_policy, tiny_llama
from tests.unit.training.test_policy_temperature import follows

pytestmark = [pytest.mark.vllm, pytest.mark.full]

T = 0.7
ROWS = tuple(PairRow(f"r{i}", (1, 5 + i, 9), (10 + i, 11, 12 + i, 2), (60 + i, 61, 62, 63 + i, 2)) for i in range(8))
ANSWERS = [Response(row.id, Prompt(row.id, row.prompt, ""), row.chosen, "", 0, 0) for row in ROWS]


def test_whole_weights_at_a_temperature(tmp_path: Path) -> None:
    """Two versions, delivered in place one after the other: the division stays and is not made twice."""
    folder = save_policy(tmp_path / "reference", seed=4)
    store = ArtifactStore(tmp_path / "artifacts")
    reference = store_reference(store, folder)
    trainer = load_trainer(folder, store, reference, temperature=T)
    settings = FitSettings(steps=4, learning_rate=1e-3, batch_pairs=8, support=0.0)
    fit = FitCommand(1, Start(reference), Objective("reward", reference, 0.1), ROWS, settings, 1, "reward-1")
    trained = trainer.execute(fit).version
    check = DeliveryCheck(trainer.log_probs, ANSWERS, 1e-4, tokenizer_fingerprint(folder))
    with vllm_process("rollout-0", folder, store, T) as engine:
        for policy in (reference, trained, reference):
            check(engine, engine.deliver(policy), policy)
            draws = engine.sample([a.prompt for a in ANSWERS], range(8), 1, Decoding(max_tokens=12))
            texts = [(a.prompt.token_ids, ids) for a, ((ids, _, _),) in zip(ANSWERS, draws, strict=True)]
            log_probs = [log_prob for ((_, _, log_prob),) in draws]
            np.testing.assert_allclose(log_probs, trainer.score(policy, texts), atol=1e-3)
        first = engine.sample([ANSWERS[0].prompt], [3], 3000, Decoding(max_tokens=1))[0]
    with torch.no_grad():
        logits = tiny_llama(4)(input_ids=torch.tensor([ROWS[0].prompt])).logits[0, -1].double()
    assert follows(first, torch.softmax(logits / T, dim=-1).numpy()) > 0.01
    assert follows(first, torch.softmax(logits, dim=-1).numpy()) < 1e-6


@pytest.mark.full
def test_adapters_at_a_temperature(tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "reference", seed=4)
    store = ArtifactStore(tmp_path / "artifacts")
    reference = store_reference(store, folder)
    trainer = load_lora_trainer(folder, store, reference, rank=8, alpha=16.0, temperature=T)
    settings = FitSettings(steps=8, learning_rate=5e-3, batch_pairs=8, support=0.0)
    fit = FitCommand(1, Start(reference), Objective("reward", reference, 0.1), ROWS, settings, 1, "reward-1")
    trained = trainer.execute(fit).version
    check = DeliveryCheck(trainer.log_probs, ANSWERS, 1e-4, tokenizer_fingerprint(folder))
    with adapters_process("rollout-0", folder, store, rank=8, alpha=16.0, temperature=T) as engine:
        for policy in (reference, trained):
            check(engine, engine.deliver(policy), policy)
