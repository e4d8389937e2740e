"""Ways of weights to an engine, the hash over a stream, and turns on shared GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from actors.trainer_group import TrainerInTurns
from pddpo_lab.methods.settings import PpoSettings
from pddpo_lab.policy_gradient.command import PpoCommand, ScoredAnswer
from pddpo_lab.worlds.tabular.parts import TabularTrainer
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.config import load
from pddpo_ray.contracts import EarlyTrainer, FitCommand, FitResult
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, PolicyVersion, Response
from pddpo_ray.rollout.factory import Device, Transfer, transfer_of
from pddpo_ray.rollout.vllm_internals import PolicyWorker
from pddpo_ray.rollout.vllm_native import reserved_rank
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import TensorStream, tensors_sha256

NATIVE = "rollout.delivery=native"
LORA = "model.parameters.kind=lora"
SHARED = "cluster.layout=time-shared"


@pytest.mark.parametrize(
    ("overrides", "device", "transfer"),
    [
        ([], "cuda", "reload"),
        ([NATIVE], "cuda", "nccl"),
        ([NATIVE, SHARED], "cuda", "ipc"),
        ([NATIVE, LORA], "cuda", "adapter"),
        ([NATIVE, LORA], "cpu", "adapter"),
        ([NATIVE], "cpu", "reload"),
        ([NATIVE, "cluster.mode=in-process"], "cuda", "reload"),
        (["rollout.engine=transformers"], "cuda", "reload"),
    ],
)
def test_weights_are_transferred_as_their_layout_allows(
    overrides: list[str], device: Device, transfer: Transfer
) -> None:
    assert transfer_of(load("text-world", overrides), device) == transfer


def test_how_weights_travel_is_no_part_of_what_a_run_computes() -> None:
    assert load("text-world").digest() == load("text-world", [NATIVE, SHARED]).digest()


def tensors() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {f"layer.{i}": torch.from_numpy(rng.normal(size=(3, i + 1))).bfloat16() for i in (2, 0, 1)}


def test_a_stream_in_order_has_the_hash_of_the_set() -> None:
    stream = TensorStream()
    for name, tensor in sorted(tensors().items()):
        stream.add(name, tensor)
    assert stream.sha256() == tensors_sha256(tensors().items())
    assert stream.count == 3


def test_a_stream_out_of_order_or_with_a_repetition_is_refused() -> None:
    stream = TensorStream()
    stream.add("b", np.zeros(1))
    for name in ("a", "b"):
        with pytest.raises(ValueError, match="in order of their names"):
            stream.add(name, np.zeros(1))


class Model:
    """Loads what it is given, as vLLM's models do."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}

    def load_weights(self, weights: Sequence[tuple[str, Any]]) -> set[str]:
        self.loaded |= dict(weights)
        return set(self.loaded)


def test_the_witness_hashes_what_the_model_loads_and_then_leaves() -> None:
    witness, model = PolicyWorker(), Model()
    witness.model_runner = SimpleNamespace(model=model)
    witness.watch_delivery()
    sent = sorted(tensors().items())
    model.load_weights(sent[:2])  # a transfer comes in several parts
    assert model.load_weights(sent[2:]) == set(tensors())
    assert witness.delivered() == (tensors_sha256(sent), 3)
    model.load_weights([("z", 1)])
    assert "load_weights" not in vars(model)


def test_a_changed_or_missing_tensor_changes_what_the_witness_says() -> None:
    sent = sorted(tensors().items())
    changed = [(name, tensor * 1.01) for name, tensor in sent]
    for other in (changed, sent[:2]):
        witness, model = PolicyWorker(), Model()
        witness.model_runner = SimpleNamespace(model=model)
        witness.watch_delivery()
        model.load_weights(other)
        assert witness.delivered()[0] != tensors_sha256(sent)


def test_ranks_are_reserved_as_vllm_can() -> None:
    assert [reserved_rank(rank) for rank in (1, 8, 9, 256)] == [8, 8, 16, 256]
    with pytest.raises(RunError, match=r"model\.parameters\.rank=600"):
        reserved_rank(600)


class Recorder:
    """A trainer and an engine that write down who was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sleep(self) -> None:
        self.calls.append("sleep")

    def execute(self, command: FitCommand) -> FitResult:
        self.calls.append("fit")
        return FitResult(PolicyVersion(1, "policy-1", "", ""))

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        self.calls.append("log-probs")
        return np.zeros(0)

    def features(self, responses: Sequence[Response]) -> Array:
        self.calls.append("features")
        return np.zeros((0, 1))

    def close(self) -> None:
        self.calls.append("close")


def test_engines_sleep_before_the_trainer_does_anything() -> None:
    recorder = Recorder()
    trainer = TrainerInTurns(recorder, [recorder, recorder])
    policy = PolicyVersion(0, "reference", "", "")
    trainer.execute(None)  # type: ignore[arg-type]
    trainer.log_probs(policy, [])
    trainer.features([])
    trainer.close()
    assert recorder.calls == [
        *["sleep", "sleep", "fit"],
        "sleep",
        "sleep",
        "log-probs",
        *("sleep", "sleep", "features", "close"),
    ]


@pytest.mark.run
def test_policy_gradients_take_turns_too_and_no_fit_begins_beside_the_engines(tmp_path: Path) -> None:
    recorder, alone = Recorder(), TabularTrainer(trap_world(), ArtifactStore(tmp_path))
    answers = tuple(ScoredAnswer((x,), (x,), 1.0 + x, -0.5 * x) for x in range(4))
    command = PpoCommand(1, alone.reference, answers, 0.5, None, PpoSettings(), 7, "policy-1")
    trainer = TrainerInTurns(alone, [recorder])
    assert trainer.perform(command).version == command.run(alone).version
    assert recorder.calls == ["sleep"]
    assert not isinstance(trainer, EarlyTrainer)
    with pytest.raises(RunError, match=r"use trainer\.engine=torch"):
        TrainerInTurns(recorder, []).perform(command)
