"""Which way weights take from the trainer to an engine."""

from __future__ import annotations

from typing import Literal

from pddpo_ray.config import Config, LoraParameters, RayCluster, VllmRollout

Device = Literal["cpu", "cuda"]
Way = Literal["reload", "adapter", "nccl", "ipc"]


def way_of(config: Config, device: Device) -> Way:
    """reload: the engine reads the artifact store and loads in place; works everywhere. adapter: files of the adapter,
    beside the base. nccl: broadcast by rank 0 to engines on other GPUs. ipc: handles to memory of the same GPU.
    """
    if not isinstance(config.rollout, VllmRollout) or config.rollout.delivery == "reload":
        return "reload"
    if isinstance(config.model.parameters, LoraParameters):
        return "adapter"
    if device == "cpu" or not isinstance(config.cluster, RayCluster):
        return "reload"
    return "ipc" if config.cluster.layout == "time-shared" else "nccl"
