"""The trainer's side of vLLM's native weight transfer: rank 0 sends a stored version to one engine.

    driver                       trainer, every rank              engine's process
    expect(policy)      ->                                        names and shapes compared, witness on
    send(policy, engine) ->      WeightSender.send     ->         init (once), start, update, finish
    delivered(policy)   ->                                        hash over what was consumed, version

What is sent is what the artifact store holds, checked by its hash once for all engines: any version can be delivered,
not only the one that happens to be resident, and a sharded trainer gathered it already. NCCL is for engines on other
GPUs (rank 0 alone reads and sends); CUDA IPC is for engines that share the ranks' GPUs (every rank shows its own copy).
A version changes once per stage and round, so the transfer is no bottleneck.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray.exceptions import RayActorError

from pddpo_ray.errors import RunError
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.device import device_for

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SendCommand:
    """One delivery: which version of which store, to which engine, and how."""

    transfer: Literal["nccl", "ipc"]
    store: str
    policy: PolicyVersion
    engine: Any
    """Handle of the engine's actor."""
    devices: int = 1
    """Devices of the engine (tensor parallelism)."""


class WeightSender:
    """Keeps the connection to each engine process; one of these lives in every rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._open: dict[str, Any] = {}
        self._source: tuple[PolicyVersion, Any] | None = None

    def send(self, command: SendCommand) -> int:
        """Send and return the number of tensors. Raises RunError when the engine was lost on the way."""
        if command.transfer == "nccl" and self._rank > 0:
            return 0
        if self._source is None or self._source[0] != command.policy:
            self._source = command.policy, stored_weights(command.store, command.policy)
        source = self._source[1]
        key = command.engine._actor_id.hex()
        try:
            if key not in self._open:
                self._open[key] = self._connect(command, source)
            self._open[key].source = source
            self._open[key].send_weights()
        except RayActorError as error:
            self._open.pop(key, None)
            raise RunError(f"an engine was lost while it was sent {command.policy.name}") from error
        self._open[key].source = None
        return len(source.metadata())

    def _connect(self, command: SendCommand, source: Any) -> Any:
        from vllm.distributed.weight_transfer.clients import RayVLLMWeightSyncClient
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        client = RayVLLMWeightSyncClient(command.engine)
        return WeightTransferTrainerFactory.trainer_init(self._first_words(command), client=client, source=source)

    def _first_words(self, command: SendCommand) -> Any:
        if command.transfer == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            return IPCTrainerInitInfo(packed=True, rank=self._rank)
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        return NCCLTrainerInitInfo(
            master_address=ray.util.get_node_ip_address(),
            master_port=free_port(),
            world_size=1 + command.devices,
            rank=self._rank,
        )


def free_port() -> int:
    """On any address of this node."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def stored_weights(store: str, policy: PolicyVersion) -> Any:
    """A stored version as vLLM's WeightSource, in order of names: the engine's witness hashes the stream."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    stored = ArtifactStore(store).read_torch(policy.path, policy.sha256)

    class StoredWeights(WeightSource):
        """Its hash is checked; tensors are read and go to the device one at a time."""

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, stored[name].dtype, tuple(stored[name].shape)) for name in sorted(stored)]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            device = device_for()
            for name in sorted(stored):
                yield name, stored[name].to(device)

    return StoredWeights()
