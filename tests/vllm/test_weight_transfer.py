"""Rank 0 sends stored versions through vLLM's own trainer side, on a CPU: only NCCL itself is replaced, by a queue.

So the handshake, the order of the calls and what they carry are the installed vLLM's; broadcasts on GPUs stay unrun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actors.weights import SendCommand, WeightSender
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import tensors_sha256
from pddpo_ray.training.local import store_reference
from tests.support.tiny_language_model import save_policy

pytestmark = pytest.mark.vllm
DEADLINE_S = 60
DEVICES = 2
"""Of the engine."""


class Inference:
    """The four methods that vLLM's trainer side calls; receives in the order of the names that it was told."""

    calls: list[tuple[str, Any]]

    def __init__(self, wire: Queue[torch.Tensor]) -> None:
        self.calls, self.received, self._wire = [], {}, wire  # type: ignore[var-annotated]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.calls.append(("init", init_info))

    def start_weight_update(self) -> None:
        self.calls.append(("start", None))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

        self.calls.append(("update", NCCLWeightTransferUpdateInfo(**update_info)))
        self.received = {name: self._wire.get(timeout=DEADLINE_S) for name in update_info["names"]}

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append(("finish", weight_version))


@pytest.fixture
def inference(monkeypatch: pytest.MonkeyPatch) -> Inference:
    from vllm.distributed.weight_transfer import clients, nccl_engine

    wire: Queue[torch.Tensor] = Queue()

    def producer(iterator: Iterator[Any], group: object, post_iter_func: Callable[[Any], Any], **_: Any) -> None:
        assert group is wire
        for item in iterator:
            wire.put(post_iter_func(item))

    side = Inference(wire)
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: wire)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", producer)
    monkeypatch.setattr(nccl_engine.NCCLTrainerWeightTransferEngine, "_post_send_sync", lambda engine: None)
    monkeypatch.setattr(clients, "RayVLLMWeightSyncClient", lambda handle: side)
    return side


def versions(folder: Path) -> tuple[ArtifactStore, list[PolicyVersion]]:
    store = ArtifactStore(folder / "artifacts")
    made = [store_reference(store, save_policy(folder / f"policy-{seed}", seed=seed)) for seed in (4, 5)]
    return store, [replace(version, number=number) for number, version in enumerate(made)]


def test_versions_arrive_whole_over_one_connection(inference: Inference, tmp_path: Path) -> None:
    store, policies = versions(tmp_path)
    engine, sender = SimpleNamespace(_actor_id=bytes(4)), WeightSender(0)
    for policy in policies:
        sent = sender.send(SendCommand("nccl", str(store.root), policy, engine, devices=DEVICES))
        assert sent == len(inference.received)
        assert tensors_sha256(inference.received.items()) == policy.sha256
        info = inference.calls[-2][1]
        assert info.names == sorted(inference.received)
        assert info.shapes == [list(inference.received[name].shape) for name in info.names]
    once = ["start", "update", "finish"]
    assert [name for name, _ in inference.calls] == ["init", *once, *once]
    joined = inference.calls[0][1]
    assert (joined["world_size"], joined["rank_offset"]) == (1 + DEVICES, 1)


def test_one_version_for_several_engines_is_read_once_by_rank_0_and_not_kept(
    inference: Inference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (policy, _) = versions(tmp_path)
    reads: list[str] = []
    read = ArtifactStore.read_torch

    def counted(*arguments: Any) -> Any:
        reads.append(arguments[1])
        return read(*arguments)

    monkeypatch.setattr(ArtifactStore, "read_torch", counted)
    senders = [WeightSender(0), WeightSender(1)]
    for number in range(3):
        engine = SimpleNamespace(_actor_id=bytes([number]))
        for sender in senders:
            sender.send(SendCommand("nccl", str(store.root), policy, engine, devices=DEVICES))
    assert reads == [policy.path]
    assert [name for name, _ in inference.calls] == ["init", "start", "update", "finish"] * 3
    assert [connection.source for connection in senders[0]._open.values()] == [None] * 3
