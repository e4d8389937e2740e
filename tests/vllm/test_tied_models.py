"""Models whose output head is their embedding: what a real vLLM engine computes with after a delivery in place.

Each engine is started from a model of its own: what is tied is a matter of the model's configuration.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import Objective, PairRow, Prompt, Response
from pddpo_ray.rollout.checkpoint import tokenizer_fingerprint
from pddpo_ray.rollout.delivery_check import verify
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import LocalTrainer, load_trainer, store_reference
from pddpo_ray.training.models.lora import load_lora_trainer
from tests.support.engine_process import adapters_process, vllm_process
from tests.support.tiny_language_model import SPECIAL, WORDS, word_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.full]

ROWS = tuple(PairRow(f"r{i}", (1, 5 + i, 9), (10 + i, 11, 12 + i, 2), (60 + i, 61, 62, 63 + i, 2)) for i in range(8))
ANSWERS = [Response(row.id, Prompt(row.id, row.prompt, ""), row.chosen, "", 0, 0) for row in ROWS]
SETTINGS = FitSettings(steps=8, learning_rate=5e-3, batch_pairs=8, support=0.0)
SHAPES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}


def tied_model(folder: Path, shape: str) -> Path:
    config, model = SHAPES[shape]
    torch.manual_seed(4)
    made = model(
        config(
            vocab_size=len(SPECIAL) + len(WORDS),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            initializer_range=0.25,
        )
    )
    made.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("shape", "adapters"), [("llama", False), ("qwen2", True)])
def test_every_version_of_a_tied_model_computes_in_the_engine_as_in_the_trainer(
    tmp_path: Path, shape: str, adapters: bool
) -> None:
    folder = tied_model(tmp_path / "reference", shape)
    store = ArtifactStore(tmp_path / "artifacts")
    reference = store_reference(store, folder)
    trainer: LocalTrainer
    if adapters:
        trainer = load_lora_trainer(folder, store, reference, rank=8, alpha=16.0)
        process = adapters_process("rollout-0", folder, store, rank=8, alpha=16.0)
    else:
        trainer = load_trainer(folder, store, reference)
        process = vllm_process("rollout-0", folder, store)
    fit = FitCommand(1, Start(reference), Objective("reward", reference, 0.1), ROWS, SETTINGS, 1, "policy-1")
    policy = trainer.execute(fit).version
    plain = trainer.log_probs(reference, ANSWERS)
    assert np.abs(trainer.log_probs(policy, ANSWERS) - plain).max() > 0.1, "the fit moved the policy"
    tokenizer = tokenizer_fingerprint(folder)
    with process as engine:
        for version in (reference, policy, reference):
            delivery = engine.deliver(version)
            expected = trainer.log_probs(version, ANSWERS)
            verify(engine, delivery, version, ANSWERS, expected, tolerance=1e-4, tokenizer=tokenizer)
