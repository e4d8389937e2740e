"""Settings that a recipe leaves to the machine, chosen before a run stores anything: dtype, delivery tolerance."""

from __future__ import annotations

from pddpo_ray.backends.machine import Machine
from pddpo_ray.config import Config, LoraParameters, RayCluster
from pddpo_ray.rollout.factory import Device, transfer_of
from pddpo_ray.storage.checkpoints import checkpoint_folder, parameters_in
from pddpo_ray.training.device import number_type

NARROW_TOLERANCE, MERGED_TOLERANCE = 0.02, 0.2
"""`rollout.canary_tolerance` in bfloat16: an H200 showed 0.006 a token; adapters that an engine gets merged are rounded
there and not in the trainer, 0.056 on SmolLM2. Weights of another version are more than 1 away."""


def device_of(config: Config, machine: Machine) -> Device:
    """Where the model runs: as configured, or CUDA when this machine has a device."""
    if config.model.device == "auto":
        return "cuda" if machine.gpus else "cpu"
    return config.model.device


def driver_device(config: Config, device: str) -> str:
    """Device of models that the driver opens itself: the run's, or on Ray the CPU, since it reserves no GPU."""
    return "cpu" if isinstance(config.cluster, RayCluster) else device


def settled(config: Config, machine: Machine) -> Config:
    """The recipe with `model.dtype` filled in, and in bfloat16 `rollout.canary_tolerance` where it is not set.

    For a remote cluster the recipe sets `model.device`. UserError if the model's files cannot be read.
    """
    dtype = config.model.dtype
    if dtype == "auto":
        dtype = number_type(device_of(config, machine), _parameter_count(config))
    model, rollout = config.model.model_copy(update={"dtype": dtype}), config.rollout
    if dtype == "bfloat16" and "canary_tolerance" not in rollout.model_fields_set:
        rollout = rollout.model_copy(update={"canary_tolerance": _tolerance(config)})
    return config.model_copy(update={"model": model, "rollout": rollout})


def _parameter_count(config: Config) -> int:
    """Parameters of the named model; 0 for a world's small one."""
    if config.model.reference is None:
        return 0
    return parameters_in(checkpoint_folder(config.model.reference))


def _tolerance(config: Config) -> float:
    merged = isinstance(config.model.parameters, LoraParameters) and transfer_of(config, "cuda") != "adapter"
    return MERGED_TOLERANCE if merged else NARROW_TOLERANCE
