"""What a recipe takes before anything starts: resources, memory and labels, as pure functions of the recipe.

Memory follows `M = weights + trainable state + activations + head`, per process, with the model's own numbers. Time is
not guessed: it depends on the machine, and a short run of the same recipe measures it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pddpo_ray.config import Config, LoraParameters, ModelFeedback, RayCluster, TabularRollout, VllmRollout
from pddpo_ray.errors import UserError
from pddpo_ray.loop.machine import GIB, Machine
from pddpo_ray.plan.work import time_rows, work, work_rows
from pddpo_ray.rollout.factory import Device
from pddpo_ray.storage.checkpoints import checkpoint_folder, weight_files
from pddpo_ray.training.memory import Sizes, layer_bytes, memory_need
from pddpo_ray.worlds.grammar import FIRST_GRAMMAR

RUNTIME_BYTES = {"trainer": 1.0 * GIB, "rollout": 1.5 * GIB, "driver": 1.0 * GIB}
"""What a process holds besides the model: interpreter, torch, transformers, vLLM."""


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


@dataclass(frozen=True)
class ModelShape:
    """Sizes that the memory depends on. `linear_sizes` sums inputs + outputs over all linear maps (for LoRA)."""

    parameters: int
    hidden: int
    layers: int
    vocabulary: int
    linear_sizes: int
    text_tokens: int
    """Longest prompt and answer together."""


@dataclass(frozen=True)
class Memory:
    """Memory of each of a part's processes, in bytes by purpose; `where` is the kind of memory."""

    part: str
    count: int
    where: Literal["host", "device"]
    bytes_by_purpose: Mapping[str, float]
    before_rounds: bool = False
    """Whether it is given back before the first round."""

    @property
    def each(self) -> float:
        return sum(self.bytes_by_purpose.values())


# --- resources -------------------------------------------------------------------------------------------------------


def device_of(config: Config, machine: Machine) -> Device:
    """Where the model runs: as configured, or CUDA when this machine has a device."""
    if config.model.device == "auto":
        return "cuda" if machine.gpus else "cpu"
    return config.model.device


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
        short = _short_of_units(config, machine, device)
        if short:
            return short
    return _short_of_memory(config, machine, device)


def _short_of_units(config: Config, machine: Machine, device: Device) -> str | None:
    reserved = bundles(config, device)
    assert isinstance(config.cluster, RayCluster)
    cpus = config.cluster.cpus or machine.cpus
    wanted = sum(bundle.count * bundle.cpus for bundle in reserved)
    if wanted > cpus:
        parts = " + ".join(f"{bundle.part} {bundle.count} x {bundle.cpus:g}" for bundle in reserved)
        return (
            f"the recipe reserves {wanted:g} CPUs ({parts}), this machine has {cpus}, {wanted - cpus:g} too few; lower "
            f"trainer.workers or rollout.engines, or share cores with cluster.cpus={wanted:g}"
        )
    gpus = round(sum(bundle.count * bundle.gpus for bundle in reserved), 4)
    if gpus > len(machine.gpus):
        here = len(machine.gpus)
        return (
            f"the recipe reserves {gpus:g} GPUs, this machine has {here}, {gpus - here:g} too few; lower "
            "trainer.workers, rollout.engines or rollout.tensor_parallel, or share GPUs with cluster.gpu_share=0.5"
        )
    return None


def _short_of_memory(config: Config, machine: Machine, device: Device) -> str | None:
    needs = memory(config, model_shape(config), device)
    host = host_bytes(needs)
    if host > machine.memory_bytes:
        return (
            f"the recipe needs about {host / GIB:.1f} GiB of memory, this machine has "
            f"{machine.memory_bytes / GIB:.1f}; use a smaller model, model.parameters.kind=lora, fewer workers or a "
            "smaller trainer.micro_pairs"
        )
    smallest = min((gpu.memory_bytes for gpu in machine.gpus), default=0)
    for need in needs:
        if need.where == "device" and need.each > smallest:
            return (
                f"{need.part} needs about {need.each / GIB:.1f} GiB on each GPU, the smallest here has "
                f"{smallest / GIB:.1f}; use model.parameters.kind=lora, trainer.engine=zero3 with more workers, or a "
                "smaller trainer.micro_pairs"
            )
    return None


# --- memory ----------------------------------------------------------------------------------------------------------


def model_shape(config: Config) -> ModelShape | None:
    """The model's numbers, from its folder or from the text world's settings; None where there is none."""
    if config.model.reference is not None:
        return _shape_of_folder(checkpoint_folder(config.model.reference), config)
    if config.world.kind == "tabular" or config.policies == "log-linear":
        return None
    size = config.world.reference
    if config.world.kind == "none":
        vocabulary, text_tokens = config.world.reference.vocabulary, config.world.reference.context
    else:
        grammar = FIRST_GRAMMAR
        vocabulary = len(grammar.vocabulary)
        text_tokens = grammar.longest
    matrices = [(size.hidden, size.hidden)] * 4 + [(size.hidden, size.intermediate)] * 3
    per_layer = sum(rows * columns for rows, columns in matrices) + 2 * size.hidden
    return ModelShape(
        parameters=size.layers * per_layer + 2 * vocabulary * size.hidden + size.hidden,
        hidden=size.hidden,
        layers=size.layers,
        vocabulary=vocabulary,
        linear_sizes=size.layers * sum(rows + columns for rows, columns in matrices),
        text_tokens=text_tokens,
    )


def _shape_of_folder(folder: Path, config: Config) -> ModelShape:
    """Exact count from the headers of the weight files; widths from config.json."""
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        described = described.get("text_config", described)
        shapes = [shape for path in weight_files(folder) for shape in stored_shapes(path)]
        # GPT-2's kind has names of its own
        hidden = int(described["n_embd"] if "n_embd" in described else described["hidden_size"])
        layers = int(described["n_layer"] if "n_layer" in described else described["num_hidden_layers"])
        vocabulary = int(described["vocab_size"])
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"model.reference {folder}: cannot read the model's sizes ({error!r}); save it again"
        ) from error
    longest = config.rollout.max_model_len if isinstance(config.rollout, VllmRollout) else 2 * config.rollout.max_tokens
    # adapters are on neither the embedding nor the head
    linear = [shape for shape in shapes if len(shape) == 2 and vocabulary not in shape]
    return ModelShape(
        parameters=sum(map(math.prod, shapes)),
        hidden=hidden,
        layers=layers,
        vocabulary=vocabulary,
        linear_sizes=sum(sum(shape) for shape in linear),
        text_tokens=longest,
    )


def stored_shapes(path: Path) -> list[tuple[int, ...]]:
    """Shapes of the tensors in a safetensors file, from its header: 8 bytes of length (little-endian), then JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > 100 * 2**20:
            raise ValueError(f"{path.name} is not a safetensors file")
        header = json.loads(file.read(length))
    return [tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"]


def memory(config: Config, shape: ModelShape | None, device: Device) -> tuple[Memory, ...]:
    """Memory per process of each part. Tables need nothing worth counting beyond the processes themselves."""
    one_process = not isinstance(config.cluster, RayCluster)
    driver = Memory("driver", 1, "host", {"runtime": RUNTIME_BYTES["driver"]})
    if shape is None:
        return (driver,)
    where: Literal["host", "device"] = "host" if device == "cpu" else "device"
    trainer = trainer_bytes(config, shape)
    rollout = rollout_bytes(config, shape, device)
    if where == "device" and isinstance(config.cluster, RayCluster) and config.cluster.layout == "time-shared":
        trainer, rollout = time_shared_bytes(trainer, rollout)
    needs = [
        *scorer_memory(config, shape, device),
        Memory("trainer", config.trainer.workers, where, trainer),
        Memory("rollout", config.rollout.engines, where, rollout),
    ]
    if not one_process:
        needs += [
            Memory("trainer process", config.trainer.workers, "host", {"runtime": RUNTIME_BYTES["trainer"]}),
            Memory("rollout process", config.rollout.engines, "host", {"runtime": RUNTIME_BYTES["rollout"]}),
        ]
    return (*needs, driver)


def host_bytes(needs: Sequence[Memory]) -> float:
    """The most that this machine holds at a time: what the rounds hold, or what is given back before the first one."""
    parts = [need for need in needs if need.where == "host"]
    early = sum(need.count * need.each for need in parts if need.before_rounds)
    resident = ("weights", "runtime", "cache")
    held = sum(need.count * need.bytes_by_purpose.get(key, 0.0) for need in parts for key in resident)
    return max(early + held, sum(need.count * need.each for need in parts if not need.before_rounds))


def scorer_memory(config: Config, shape: ModelShape, device: Device) -> tuple[Memory, ...]:
    """Reward and cost model: AdamW on all of their float32 weights where they are trained, then the weights alone.

    A model that is given counts as large as the policy; where the recipe names it by hub name its size is not known.
    """
    if not isinstance(config.feedback, ModelFeedback):
        return ()
    weights, runtime = 4.0 * shape.parameters, {}
    if isinstance(config.cluster, RayCluster):
        runtime = {"runtime": RUNTIME_BYTES["trainer"]}
    where: Literal["host", "device"] = "device" if device == "cuda" and config.feedback.gpus else "host"
    needs = [Memory("reward and cost models", 2, where, {"models": weights, **runtime})]
    if None in (config.feedback.reward, config.feedback.cost):
        tokens = 2 * config.scorers.fit.batch_pairs * shape.text_tokens
        activations = layer_bytes(tokens, Sizes(shape.hidden, shape.layers))
        purposes = {"model": weights, "gradients": weights, "optimizer": 2 * weights, "activations": activations}
        needs.append(Memory("scorer training", 1, "host", purposes, before_rounds=True))
    return tuple(needs)


def trainer_bytes(config: Config, shape: ModelShape) -> dict[str, float]:
    """Bytes of one rank (docs/performance.md has the formula)."""
    width = 2 if config.model.dtype == "bfloat16" else 4
    ranks, budget = config.trainer.workers, config.trainer.activation_gib
    trained = shape.parameters
    if isinstance(config.model.parameters, LoraParameters):
        trained = config.model.parameters.rank * shape.linear_sizes
    pairs = config.trainer.micro_pairs or -(-_largest_batch(config) // ranks)
    need = memory_need(
        parameters=shape.parameters,
        trained=trained,
        vocabulary=shape.vocabulary,
        sizes=Sizes(shape.hidden, shape.layers, width),
        tokens=2 * pairs * shape.text_tokens,
        stage=int(config.trainer.engine[-1]) if config.trainer.engine.startswith("zero") else 0,
        ranks=ranks,
        activation_budget=None if budget is None else budget * GIB,
    )
    return dict(need)


def rollout_bytes(config: Config, shape: ModelShape, device: Device) -> dict[str, float]:
    """Bytes of one engine per device: its share of the weights and the key-value cache (CUDA: what is left for it)."""
    width = 2 if config.model.dtype == "bfloat16" else 4
    weights = float(shape.parameters * width)
    if isinstance(config.rollout, VllmRollout):
        weights /= config.rollout.tensor_parallel if device == "cuda" else 1
        return {"weights": weights, "cache": config.rollout.kv_cache_gib * GIB}
    # transformers keeps keys and values of a whole batch
    sequences = getattr(config.rollout, "batch", 1)
    cache = 2.0 * shape.layers * shape.hidden * shape.text_tokens * sequences * width
    return {"weights": weights, "cache": cache}


ENGINE_ASLEEP_BYTES = 1.5 * GIB
"""What a sleeping vLLM engine keeps on its GPU: CUDA context, graphs and communication buffers."""


def time_shared_bytes(
    trainer: Mapping[str, float], rollout: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """A shared GPU's bytes in its two states: the trainer works and the engine sleeps, or the engine is awake while the
    trainer keeps weights and optimiser."""
    resident = {f"trainer's {purpose}": trainer[purpose] for purpose in ("weights", "optimizer")}
    return {**trainer, "engine asleep": ENGINE_ASLEEP_BYTES}, {**rollout, **resident}


def _largest_batch(config: Config) -> int:
    fits = (config.trainer.reward, config.trainer.cost, config.trainer.first_reward, config.trainer.first_cost)
    return max(fit.batch_pairs for fit in fits)


def stored_bytes(config: Config, shape: ModelShape | None) -> float:
    """Artifacts of the whole run: the reference, and one reward policy and one policy per round.

    Adapters are float32; a whole version in bfloat16 has its float32 masters beside it.
    """
    if shape is None:
        return 0.0
    width = 2 if config.model.dtype == "bfloat16" else 4
    versions = 2 * config.rounds
    if isinstance(config.model.parameters, LoraParameters):
        return width * shape.parameters + 4.0 * versions * config.model.parameters.rank * shape.linear_sizes
    version = 4 if width == 4 else 6
    return float(shape.parameters * (width + version * versions))


# --- labels ----------------------------------------------------------------------------------------------------------


def labels(config: Config) -> dict[str, float]:
    """Labels that the run asks for: N x M x K for the cost, and two questions per pair. `hours` is a person's time."""
    safety = config.answers_asked * config.feedback.labels_each * config.rounds
    online = 2 * config.pairs_asked * config.rounds
    asked = safety + online
    return {
        "safety": safety,
        "safety_per_round": config.answers_asked * config.feedback.labels_each,
        "preferences": online,
        "preferences_per_round": 2 * config.pairs_asked,
        "offline": 2 * config.offline.pairs,
        "asked_in_rounds": asked,
        "hours": asked * config.feedback.minutes_per_label / 60.0,
    }


# --- together --------------------------------------------------------------------------------------------------------


def make_plan(config: Config, machine: Machine) -> dict[str, Any]:
    """The whole plan as plain values, for `--dry-run` and `--json`."""
    device = device_of(config, machine)
    shape = model_shape(config)
    placed = placement(config, device)
    needs = memory(config, shape, device)
    return {
        "cluster": config.cluster.mode,
        "layout": placed.layout,
        "head": list(placed.head),
        "device": device,
        "machine": {
            "cpus": machine.cpus,
            "memory_bytes": machine.memory_bytes,
            "gpus": [gpu.name for gpu in machine.gpus],
        },
        "resources": [asdict(bundle) for bundle in placed.bundles],
        "parameters": shape.parameters if shape else 0,
        "memory": [{**asdict(need), "bytes_each": need.each} for need in needs],
        "host_bytes": host_bytes(needs),
        "stored_bytes": stored_bytes(config, shape),
        "work": work(config),
        "labels": labels(config),
    }


def plan_lines(plan: Mapping[str, Any]) -> list[tuple[str, list[Sequence[str]]]]:
    """The plan for a reader: headings, each with rows of aligned cells."""
    resources: list[Sequence[str]] = [
        (
            row["part"],
            f"{row['count']} x",
            f"{row['cpus']:g} CPU" + (f" {row['gpus']:g} GPU" if row["gpus"] else ""),
            row["note"],
        )
        for row in plan["resources"]
    ]
    if resources:
        resources.append(("beside the driver", "", "0 CPU", ", ".join(plan["head"])))
        for unit, name in (("cpus", "CPUs"), ("gpus", "GPUs")):
            total = sum(row["count"] * row[unit] for row in plan["resources"])
            resources += [("in all", "", f"{total:g} {name}", "")] if total else []
    resources = resources or [("one process", "on this machine")]
    memory_rows: list[Sequence[str]] = [
        (
            row["part"],
            f"{row['count']} x {_size(row['bytes_each'])}",
            f"({row['where']})",
            ", ".join(f"{purpose} {_size(size)}" for purpose, size in row["bytes_by_purpose"].items()),
        )
        for row in plan["memory"]
    ]
    memory_rows.append(("in all", _size(plan["host_bytes"]), "(host)", "the most at a time"))
    asked = plan["labels"]
    label_rows: list[Sequence[str]] = [
        ("safety", f"{asked['safety']:,}", f"{asked['safety_per_round']:,} a round"),
        ("preferences", f"{asked['preferences']:,}", f"{asked['preferences_per_round']:,} a round"),
        ("offline", f"{asked['offline']:,}", "there before the first round"),
        ("people's time", f"{asked['hours']:,.0f} h", "if people answered what the rounds ask"),
    ]
    worked = [("work", work_rows(plan["work"]))] if plan["parameters"] else []
    if "seconds" in plan:
        worked.append(("time on this machine, in one process", time_rows(plan["speeds"], plan["seconds"])))
    return [
        (f"resources ({plan['cluster']}, {plan['layout']}, {plan['device']})", resources),
        (f"memory (model of {plan['parameters']:,} parameters; artifacts {_size(plan['stored_bytes'])})", memory_rows),
        *worked,
        ("labels", label_rows),
    ]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit in ("B", "KiB") or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
