"""The trainer's side of vLLM's native weight transfer: rank 0 sends a stored version to one engine.

    driver                       trainer, every rank              engine's process
    expect(policy)      ->                                        names and shapes compared, witness on
    send(policy, engine) ->      WeightSender.send     ->         init (once), start, update, finish
    delivered(policy)   ->                                        hash over what was consumed, version

What is sent is what the artifact store holds, checked by its hash while it is read: any version can be delivered, not
only the one that happens to be resident, and a sharded trainer gathered it already. NCCL is for engines on other GPUs
(only rank 0 sends); CUDA IPC is for engines that share the ranks' GPUs (every rank shows its own copy). A version
changes once per stage and round, so the transfer is no bottleneck.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray.exceptions import RayActorError

from actors.session import free_port
from pddpo_ray.errors import RunError
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore

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

    def send(self, command: SendCommand) -> int:
        """Send and return the number of tensors. Raises RunError when the engine was lost on the way."""
        source = stored_weights(command.store, command.policy)
        key = command.engine._actor_id.hex()
        try:
            if key not in self._open:
                self._open[key] = self._connect(command, source)
            self._open[key].source = source
            self._open[key].send_weights()
        except RayActorError as error:
            self._open.pop(key, None)
            raise RunError(f"an engine was lost while it was sent {command.policy.name}") from error
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
            master_port=free_port(""),
            world_size=1 + command.devices,
            rank=self._rank,
        )


def stored_weights(store: str, policy: PolicyVersion) -> Any:
    """A stored version as vLLM's WeightSource, in order of names: the engine's witness hashes the stream."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    artifacts = ArtifactStore(store)

    class StoredWeights(WeightSource):
        """Reads the version once and checks its hash; tensors go to the device one at a time."""

        def __init__(self) -> None:
            self._tensors = dict(sorted(artifacts.read_torch(policy.path, policy.sha256).items()))

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors.items()]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
            for name, tensor in self._tensors.items():
                yield name, tensor.to(device)

    return StoredWeights()
