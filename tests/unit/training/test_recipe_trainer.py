"""The trainer of a recipe's model: all weights or adapters, and how matrices are multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pddpo_ray.config import LoraParameters, ModelConfig
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.models.lora import LoraTrainer
from pddpo_ray.training.recipe_trainer import recipe_trainer
from tests.support.tiny_language_model import save_policy


@pytest.fixture(autouse=True)
def precision_as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("adapters", [False, True])
def test_the_parameters_decide_the_trainer_and_what_its_engine_trains(tmp_path: Path, adapters: bool) -> None:
    store, folder = ArtifactStore(tmp_path / "store"), save_policy(tmp_path / "reference", seed=4)
    model = ModelConfig(parameters=LoraParameters(kind="lora", rank=4, alpha=8.0)) if adapters else ModelConfig()
    trainer = recipe_trainer(model, folder, store, store_reference(store, folder))
    assert type(trainer) is (LoraTrainer if adapters else LocalTrainer)
    assert all(("lora" in name) is adapters for name, _ in trainer.engine.each_weight())
