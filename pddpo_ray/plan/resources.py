"""Which processes a recipe has, what they reserve, and whether this machine can ever run them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from pddpo_ray.backends.machine import GIB, Machine
from pddpo_ray.backends.settled import device_of, settled
from pddpo_ray.config import Config, ModelFeedback, RayCluster, TabularRollout, VllmRollout
from pddpo_ray.plan.memory import host_bytes, memory, model_shape, on_one_gpu
from pddpo_ray.rollout.factory import Device

TIME_SHARES = {"trainer": 0.4, "rollout": 0.52}
"""Shares of a GPU in the time-shared layout. Two engines never fit on one GPU, and Ray gives a rank the fullest GPU
that holds it, which has an engine: every GPU gets one of each (engines are started first). The rest is for reward and
cost models."""


@dataclass(frozen=True)
class Bundle:
    """Resources that one process of a part reserves, and how many such processes there are."""

    part: str
    count: int
    cpus: float
    gpus: float = 0.0
    note: str = field(default="", compare=False)
    """What the processes are, for a reader."""


@dataclass(frozen=True)
class Placement:
    """Where the processes of a run live: bundles on the workers, and parts beside the driver that reserve nothing."""

    layout: str
    bundles: tuple[Bundle, ...]
    head: tuple[str, ...]


def placement(config: Config, device: Device) -> Placement:
    """The whole placement of a recipe. In one process nothing is reserved."""
    if not isinstance(config.cluster, RayCluster):
        return Placement("one process", (), ("everything",))
    head = ["driver", "journal", "dual variable", "trainer's mailbox"]
    reserved = bundles(config, device)
    if not any(bundle.part == "feedback" for bundle in reserved):
        head.append("labeller")
    return Placement(config.cluster.layout, reserved, tuple(head))


def bundles(config: Config, device: Device) -> tuple[Bundle, ...]:
    """What each part reserves. What mostly waits (driver, dual variable, a world's truth) reserves nothing."""
    parts = [_trainer_bundle(config, device), _rollout_bundle(config, device)]
    if isinstance(config.feedback, ModelFeedback):
        gpus = config.feedback.gpus if device == "cuda" else 0.0
        parts.append(Bundle("feedback", 2, 0.0, gpus, "reward model and cost model"))
    return tuple(parts)


def _gpu_share(config: Config, part: str, device: Device) -> float:
    if device == "cpu":
        return 0.0
    if not isinstance(config.cluster, RayCluster):
        return 1.0
    return TIME_SHARES[part] if config.cluster.layout == "time-shared" else config.cluster.gpu_share


def _trainer_bundle(config: Config, device: Device) -> Bundle:
    trainer = config.trainer
    if isinstance(config.rollout, TabularRollout):
        return Bundle("trainer", trainer.workers, 1.0, note="table")
    note = "plain torch" if trainer.engine == "torch" else f"DeepSpeed ZeRO-{trainer.engine[-1]}"
    return Bundle("trainer", trainer.workers, trainer.threads, _gpu_share(config, "trainer", device), note)


def _rollout_bundle(config: Config, device: Device) -> Bundle:
    rollout, gpus = config.rollout, _gpu_share(config, "rollout", device)
    if isinstance(rollout, TabularRollout):
        return Bundle("rollout", rollout.engines, 1.0, note="table")
    if not isinstance(rollout, VllmRollout):
        return Bundle("rollout", rollout.engines, 1.0, gpus, "transformers")
    split = rollout.tensor_parallel
    note = f"vLLM, tensor parallel {split}" if split > 1 else "vLLM"
    if split > 1 and device == "cuda":
        return Bundle("rollout", rollout.engines, rollout.threads, float(split), note)
    # on a CPU the ranks of one engine are threads of work, on GPUs they are whole devices
    return Bundle("rollout", rollout.engines, rollout.threads * split, gpus, note)


def runs_here(config: Config) -> bool:
    """Whether the run uses this machine alone; a cluster elsewhere knows its own resources."""
    if not isinstance(config.cluster, RayCluster):
        return True
    return config.cluster.address is None and not os.environ.get("RAY_ADDRESS")


def shortage(config: Config, machine: Machine) -> str | None:
    """Why this machine can never run the recipe, and what to do; None if it can or if it runs elsewhere."""
    if not runs_here(config):
        return None
    device = device_of(config, machine)
    if device == "cuda" and not machine.gpus:
        return "model.device=cuda, but this machine has no CUDA device; set model.device=cpu"
    if isinstance(config.cluster, RayCluster):
        short = _unit_shortage(config, machine, device)
        if short:
            return short
    return _memory_shortage(settled(config, machine), machine, device)


def _unit_shortage(config: Config, machine: Machine, device: Device) -> str | None:
    reserved = bundles(config, device)
    assert isinstance(config.cluster, RayCluster)
    cpus = config.cluster.cpus or machine.cpus
    demand = sum(bundle.count * bundle.cpus for bundle in reserved)
    if demand > cpus:
        parts = " + ".join(f"{bundle.part} {bundle.count} x {bundle.cpus:g}" for bundle in reserved)
        return (
            f"the recipe reserves {demand:g} CPUs ({parts}), this machine has {cpus}, {demand - cpus:g} too few; lower "
            f"trainer.workers or rollout.engines, or share cores with cluster.cpus={demand:g}"
        )
    gpus = round(sum(bundle.count * bundle.gpus for bundle in reserved), 4)
    if gpus > len(machine.gpus):
        count = len(machine.gpus)
        return (
            f"the recipe reserves {gpus:g} GPUs, this machine has {count}, {gpus - count:g} too few; lower "
            "trainer.workers, rollout.engines or rollout.tensor_parallel, or share GPUs with cluster.gpu_share=0.5"
        )
    return None


def _memory_shortage(config: Config, machine: Machine, device: Device) -> str | None:
    smallest = min((gpu.memory_bytes for gpu in machine.gpus), default=0)
    needs = memory(config, model_shape(config), device, smallest)
    host = host_bytes(needs)
    if host > machine.memory_bytes:
        return (
            f"the recipe needs about {host / GIB:.1f} GiB of memory, this machine has "
            f"{machine.memory_bytes / GIB:.1f}; use a smaller model, model.parameters.kind=lora, fewer workers or a "
            "smaller trainer.micro_pairs"
        )
    for part, size in on_one_gpu(config, needs).items():
        if size > smallest:
            return (
                f"{part} needs about {size / GIB:.1f} GiB on each GPU, the smallest here has {smallest / GIB:.1f}; use "
                "model.parameters.kind=lora, model.parameters.quantise=nf4, trainer.engine=zero3 with more workers,"
                " cluster.layout=time-shared, or a smaller trainer.micro_pairs or rollout.gpu_memory"
            )
    return None
