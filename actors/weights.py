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
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RayActorError

from pddpo_ray.errors import RunError
from pddpo_ray.records import PolicyVersion
from pddpo_ray.rollout.vllm_internals import send_weights, weight_sender, weight_source
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.device import device_for


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
            weights = ArtifactStore(command.store).read_torch(command.policy.path, command.policy.sha256)
            self._source = command.policy, weight_source(weights, device_for())
        source = self._source[1]
        key = command.engine._actor_id.hex()
        try:
            if key not in self._open:
                meeting = None if command.transfer == "ipc" else (ray.util.get_node_ip_address(), free_port())
                self._open[key] = weight_sender(command.engine, source, self._rank, meeting, 1 + command.devices)
            return send_weights(self._open[key], source)
        except RayActorError as error:
            self._open.pop(key, None)
            raise RunError(f"an engine was lost while it was sent {command.policy.name}") from error


def free_port() -> int:
    """Free on all addresses of this node."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
