"""The trainer of a recipe's model: in this process, or on a rank of a group with another engine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from pddpo_ray.config import LoraParameters, ModelConfig
from pddpo_ray.errors import UserError
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.device import compiles_layers, device_for
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import Engine
from pddpo_ray.training.local import LocalTrainer, MakeEngine, load_trainer
from pddpo_ray.training.models.lora import load_lora_trainer
from pddpo_ray.training.passes.log_probs import device_of


def recipe_trainer(
    model: ModelConfig,
    folder: Path,
    store: ArtifactStore,
    reference: PolicyVersion,
    *,
    temperature: float = 1.0,
    make_engine: MakeEngine = TorchEngine,
) -> LocalTrainer:
    """Trains all weights of the model in `folder`, or adapters, with the engine that `make_engine` makes; `temperature`
    is the policy's. UserError where layers have to be compiled and cannot be."""
    if model.compile is True and device_for(model.device).type != "cuda":
        _demand_compiler()
    # a 10 bit mantissa would move log-probabilities by more than a delivery may differ
    torch.set_float32_matmul_precision("highest")
    parameters = model.parameters
    trainer: LocalTrainer
    if isinstance(parameters, LoraParameters):
        trainer = load_lora_trainer(
            folder,
            store,
            reference,
            rank=parameters.rank,
            alpha=parameters.alpha,
            dropout=parameters.dropout,
            dtype=model.dtype,
            temperature=temperature,
            make_engine=make_engine,
            device=model.device,
        )
    else:
        trainer = load_trainer(folder, store, reference, model.dtype, temperature, make_engine, model.device)
    if model.compile is True or (model.compile == "auto" and _is_worth_compiling(trainer.engine)):
        trainer.engine.scorer.compile_layers()
    return trainer


def _is_worth_compiling(engine: Engine) -> bool:
    """Whether layers are compiled where the recipe leaves it to the device. What torch cannot compile runs as it is."""
    parameters = sum(parameter.numel() for parameter in engine.scorer.parameters())
    chosen = isinstance(engine, TorchEngine) and compiles_layers(device_of(engine.scorer).type, parameters)
    if chosen:
        torch._dynamo.config.suppress_errors = True
    return chosen


def _demand_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UserError(f"model.compile needs a C++ compiler on a CPU, and there is no {compiler}: install one")
