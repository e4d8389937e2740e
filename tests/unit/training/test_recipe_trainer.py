"""The trainer of a recipe's model: all weights or adapters, and how matrices are multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch

from pddpo_lab.policy_gradient.command import PpoCommand
from pddpo_lab.policy_gradient.networks import update_network
from pddpo_ray.config import LoraParameters, ModelConfig
from pddpo_ray.errors import UserError
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


def test_a_policy_gradient_trains_whole_models_alone(tmp_path: Path) -> None:
    store, folder = ArtifactStore(tmp_path / "store"), save_policy(tmp_path / "reference", seed=4)
    model = ModelConfig(parameters=LoraParameters(kind="lora", rank=4, alpha=8.0))
    trainer = recipe_trainer(model, folder, store, store_reference(store, folder))
    with pytest.raises(UserError, match=r"model\.parameters\.kind=full"):
        update_network(cast(PpoCommand, None), trainer)
