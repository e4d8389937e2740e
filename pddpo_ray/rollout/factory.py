"""From a recipe to an inference engine, in whichever process calls, and how weights reach it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pddpo_ray.config import Config, LoraParameters, RayCluster, TransformersRollout, VllmRollout
from pddpo_ray.contracts import RolloutEngine
from pddpo_ray.errors import UserError
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.rollout.vllm_engine import VllmEngine, VllmSettings
from pddpo_ray.storage.artifacts import ArtifactStore

Device = Literal["cpu", "cuda"]
Transfer = Literal["reload", "adapter", "nccl", "ipc"]


def transfer_of(config: Config, device: Device) -> Transfer:
    """How weights get from the trainer to an engine.

    reload: the engine reads the artifact store and loads in place; works everywhere. adapter: files of the adapter,
    beside the base. nccl: broadcast by rank 0 to engines on other GPUs. ipc: handles to memory of the same GPU.
    """
    if not isinstance(config.rollout, VllmRollout) or config.rollout.delivery == "reload":
        return "reload"
    if isinstance(config.model.parameters, LoraParameters):
        return "adapter"
    if device == "cpu" or not isinstance(config.cluster, RayCluster):
        return "reload"
    if config.cluster.layout == "time-shared":
        return "ipc"
    # NCCL refuses a group of which two members are on one GPU
    return "nccl" if config.cluster.gpu_share == 1 else "reload"


def language_engine(config: Config, name: str, folder: Path, store: ArtifactStore) -> RolloutEngine:
    """vLLM or transformers for the model in `folder`, as the recipe says. vLLM is imported in this process alone."""
    rollout = config.rollout
    if isinstance(rollout, VllmRollout):
        import torch

        from pddpo_ray.rollout.vllm_native import AdapterVllmEngine, TransferVllmEngine

        on_gpu = torch.cuda.is_available()
        settings = VllmSettings(
            **rollout.model_dump(),
            dtype=config.model.dtype,
            temperature=config.policy.temperature,
            sleeps=on_gpu and isinstance(config.cluster, RayCluster) and config.cluster.layout == "time-shared",
        )
        match transfer_of(config, "cuda" if on_gpu else "cpu"):
            case "adapter":
                assert isinstance(config.model.parameters, LoraParameters)
                return AdapterVllmEngine(name, folder, store, settings, config.model.parameters)
            case "nccl" | "ipc" as transfer:
                return TransferVllmEngine(name, folder, store, settings, transfer)
        return VllmEngine(name, folder, store, settings)
    if isinstance(rollout, TransformersRollout):
        return TransformersEngine(
            name,
            folder,
            store,
            dtype=config.model.dtype,
            batch_size=rollout.max_sequences,
            temperature=config.policy.temperature,
            device=config.model.device,
        )
    raise UserError(f"rollout.engine {rollout.engine} samples from no language model; use vllm or transformers")
