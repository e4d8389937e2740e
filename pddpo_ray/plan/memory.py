"""What a recipe holds in memory, process by process, and on disk, as pure functions of the recipe.

`M = weights + trainable state + activations + head` with the model's own numbers, and what a process holds beside them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pddpo_ray.backends.machine import GIB
from pddpo_ray.backends.settled import driver_device
from pddpo_ray.config import (
    Config,
    LoraParameters,
    RayCluster,
    SmallModelConfig,
    TextWorldConfig,
    VllmRollout,
)
from pddpo_ray.config.sections.trainer import Stage
from pddpo_ray.errors import UserError
from pddpo_ray.rollout.factory import Device
from pddpo_ray.storage.checkpoints import UNREADABLE, checkpoint_folder, parameters_in, weight_shapes
from pddpo_ray.storage.whole_files import KEPT_WHOLE
from pddpo_ray.training.passes.memory import Sizes, layer_bytes, memory_need, weight_bytes
from pddpo_ray.worlds.text.family import grammar_of

RUNTIME_BYTES = {"trainer": 1.0 * GIB, "rollout": 1.5 * GIB, "driver": 1.0 * GIB, "scorer": 0.65 * GIB}
"""What a process holds besides the model: interpreter, torch, transformers, vLLM."""
RAY_BYTES = 1.8 * GIB
"""What Ray's own processes and a run's small actors hold together on the driver's machine, shared pages once."""


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
    prompt_tokens: int = 0
    """Longest prompt, which the two texts of a pair share in a pass; 0 where it is not known."""
    architecture: str = ""
    """The model's `config.json`; empty: a Llama of these sizes."""
    linear_numbers: int = 0
    """Numbers of all linear maps but the head, which NF4 makes smaller."""


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


def model_shape(config: Config) -> ModelShape | None:
    """The model's numbers, from its folder or from the text world's settings; None where there is none."""
    if config.model.reference is not None:
        return _shape_of_folder(checkpoint_folder(config.model.reference), config)
    if config.policies != "language models":
        return None
    size: SmallModelConfig
    if config.data is not None:
        if config.data.reference is None:
            raise UserError("the recipe names no model: give model.reference=FOLDER, the model to align")
        size = config.data.reference.shape
        vocabulary, text_tokens = config.data.reference.vocabulary, config.data.reference.context
    else:
        assert isinstance(config.world, TextWorldConfig)
        size = config.world.reference
        grammar = grammar_of(config.world)
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
        linear_numbers=size.layers * sum(rows * columns for rows, columns in matrices),
        architecture=_llama(size.hidden, size.layers, vocabulary, size.intermediate, size.heads),
    )


def _llama(hidden: int, layers: int, vocabulary: int, intermediate: int, heads: int) -> str:
    described = {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": vocabulary}
    return json.dumps({**described, "intermediate_size": intermediate, "num_attention_heads": heads})


def _shape_of_folder(folder: Path, config: Config) -> ModelShape:
    """Exact count from the headers of the weight files; widths from config.json."""
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        described = described.get("text_config", described)
        shapes = weight_shapes(folder)
        # GPT-2's kind has names of its own
        hidden = int(described["n_embd"] if "n_embd" in described else described["hidden_size"])
        layers = int(described["n_layer"] if "n_layer" in described else described["num_hidden_layers"])
        vocabulary = int(described["vocab_size"])
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(UNREADABLE.format(folder=folder, error=error)) from error
    longest = config.rollout.max_model_len if isinstance(config.rollout, VllmRollout) else 2 * config.rollout.max_tokens
    prompt_tokens = 0
    if config.data is not None:
        prompt_tokens = config.data.prompt_tokens
        longest = prompt_tokens + max(config.data.answer_tokens, config.rollout.max_tokens)
    # adapters are on neither the embedding nor the head
    linear = [shape for shape in shapes if len(shape) == 2 and vocabulary not in shape]
    return ModelShape(
        parameters=sum(map(math.prod, shapes)),
        hidden=hidden,
        layers=layers,
        vocabulary=vocabulary,
        linear_sizes=sum(sum(shape) for shape in linear),
        text_tokens=longest,
        prompt_tokens=prompt_tokens,
        architecture=json.dumps(described) if "model_type" in described else "",
        linear_numbers=sum(map(math.prod, linear)),
    )


def memory(config: Config, shape: ModelShape | None, device: Device, gpu_bytes: float = 0.0) -> tuple[Memory, ...]:
    """Memory per process of each part. Tables need nothing worth counting beyond the processes themselves.

    gpu_bytes: of each GPU, of which vLLM takes a share (0: not known, it needs its weights and cache).
    """
    one_process = not isinstance(config.cluster, RayCluster)
    engine_here = one_process and isinstance(config.rollout, VllmRollout)
    driver = Memory("driver", 1, "host", {"runtime": RUNTIME_BYTES["rollout" if engine_here else "driver"]})
    ray = () if one_process else (Memory(RAY, 1, "host", {"runtime": RAY_BYTES}),)
    if shape is None:
        return (driver, *ray)
    where: Literal["host", "device"] = "host" if device == "cpu" else "device"
    trainer = trainer_bytes(config, shape, device) | ({"context": CONTEXT_BYTES} if where == "device" else {})
    rollout = rollout_bytes(config, shape, device, gpu_bytes)
    scorers, asleep = scorer_memory(config, shape, device), {}
    if where == "device" and isinstance(config.cluster, RayCluster) and config.cluster.layout == "time-shared":
        asleep = {"asleep": rollout["weights"]}
        trainer, rollout, beside = time_shared_bytes(trainer, rollout)
        scorers = tuple(
            replace(need, bytes_by_purpose={**need.bytes_by_purpose, **beside}) if need.where == "device" else need
            for need in scorers
        )
    ranks, engines = config.trainer.workers, config.rollout.engines
    runtimes = {"trainer": {}, "rollout": {}} if one_process else RUNTIMES
    needs = [
        *scorers,
        *driver_memory(config, shape, device),
        Memory("trainer", ranks, where, trainer),
        Memory("rollout", engines, where, rollout),
        Memory(TRAINER_PROCESS, ranks, "host", {**runtimes["trainer"], **best_weights(config, shape)}),
        Memory(FIRST_RANK, 1, "host", copies_of_trainer(config, shape)),
        Memory(
            "rollout process", engines, "host", {**runtimes["rollout"], **asleep, **copies_of_engine(config, shape)}
        ),
        Memory(STORING, 1, "host", copies_of_reference(config, shape), before_rounds=True),
        driver,
        *ray,
    ]
    return tuple(need for need in needs if need.bytes_by_purpose)


RUNTIMES = {part: {"runtime": RUNTIME_BYTES[part]} for part in ("trainer", "rollout")}
TRAINER_PROCESS, FIRST_RANK = "trainer process", "first rank"
"""The trainer's first rank, beyond what every rank holds."""
STORING = "driver, storing the reference"
"""A checkpoint in another type than the run's is converted in memory."""
DELIVERING = "merged weights"
"""What an engine's process holds while it takes over a version that is stored as an adapter."""
EARLIER = ("weights", "runtime", "cache", "limits.", "reward")
"""What is held before the first round too, while scorers are trained."""


def copies_of_trainer(config: Config, shape: ModelShape) -> dict[str, float]:
    """Copies on the host of the first rank: the version that it writes, of bfloat16 with its float32 masters, and the
    moments of AdamW where they are carried.

    Files that are read (starts of fits, the base of adapters) are mapped, tensor by tensor.
    """
    masters = 4.0 if _width(config) == 2 else 0.0
    moments = 8.0 if config.trainer.moments == "carried" else 0.0
    return {"version": trained_parameters(config, shape) * (_width(config) + masters + moments)}


def copies_of_reference(config: Config, shape: ModelShape) -> dict[str, float]:
    """On the driver's host while it stores the reference: whole weights, and the base of 4 bits that they come from."""
    return {"reference": float(shape.parameters * _width(config)), **_narrow_base(config, shape)}


def best_weights(config: Config, shape: ModelShape) -> dict[str, float]:
    """On the host of every rank while a fit looks at pairs that are kept apart: the weights that were best on them."""
    return {"best weights": 4.0 * trained_parameters(config, shape)} if config.trainer.held_out else {}


def copies_of_engine(config: Config, shape: ModelShape) -> dict[str, float]:
    """On the host while it takes a version over: whole weights come tensor by tensor, adapters are merged first."""
    by_files = isinstance(config.rollout, VllmRollout) and config.rollout.delivery == "native"
    if by_files or not isinstance(config.model.parameters, LoraParameters):
        return {}
    return {DELIVERING: float(shape.parameters * _width(config))}


def on_one_gpu(config: Config, needs: Sequence[Memory]) -> dict[str, float]:
    """Bytes that a GPU holds at a time, by whose it is: all of one process, both of parts that share it on purpose."""
    device_needs = [need for need in needs if need.where == "device"]
    if not isinstance(config.cluster, RayCluster):
        return {"the run": _peak_bytes(device_needs)} if device_needs else {}
    each = {need.part: need.each for need in device_needs}
    if config.cluster.layout == "split" and config.cluster.gpu_share < 1 and len(each) > 1:
        each["a trainer and an engine"] = each.pop("trainer") + each.pop("rollout")
    return each


def host_bytes(needs: Sequence[Memory]) -> float:
    """The most that this machine holds at a time: while scorers are trained, while a fit runs, or during a delivery."""
    return _peak_bytes([need for need in needs if need.where == "host"])


def by_process(needs: Sequence[Memory]) -> dict[str, float]:
    """The most that each kind of process holds, on a cluster. Scorers are trained by the driver."""
    groups = {
        "trainer": ("trainer", TRAINER_PROCESS, FIRST_RANK),
        "rollout": ("rollout", "rollout process"),
        "scorer": (SCORERS, WAITING),
        "driver": ("driver", MEASURING, HELD_OUT, TRAINING, STORING),
        "ray": (RAY,),
    }
    most = {}
    for name, parts in groups.items():
        own_needs = [replace(need, count=1) for need in needs if need.part in parts and need.where == "host"]
        if own_needs:
            most[name] = _peak_bytes(own_needs)
    return most


def _peak_bytes(parts: Sequence[Memory]) -> float:
    def held(selects: Callable[[Memory, str], bool]) -> float:
        return sum(
            need.count * size for need in parts for key, size in need.bytes_by_purpose.items() if selects(need, key)
        )

    return max(
        held(lambda need, key: need.part == STORING or key == "runtime"),
        held(lambda need, key: need.part != STORING and (need.before_rounds or key.startswith(EARLIER))),
        held(lambda need, key: not need.before_rounds and key != DELIVERING),
        held(lambda need, key: not need.before_rounds and key not in ("activations", "head", "gradients")),
    )


SCORERS, TRAINING, RAY = "reward and cost models", "scorer training", "Ray itself"
MEASURING, HELD_OUT, MODEL_SOURCES = "models that measure", "held-out scorers", ("classifier", "score_model")
WAITING = "reward and cost models, waiting"
"""In the time-shared layout their weights are on the GPU only while they score."""


def scorer_memory(config: Config, shape: ModelShape, device: Device) -> tuple[Memory, ...]:
    """Reward and cost models of feedback or a method. Those trained here are float32; stored ones compute in the run's
    type and count as large as the policy, since a hub name does not tell their size."""
    models = [getattr(config.score_models, kind) for kind in config.asked_models]
    models += [None, None] * config.traits.policy_gradient
    if not models:
        return ()
    largest = float((4 if None in models else _width(config)) * shape.parameters)
    runtime = {"runtime": RUNTIME_BYTES["scorer"]} if isinstance(config.cluster, RayCluster) else {}
    # in one process models are where the policy is
    if device == "cpu" or (runtime and not getattr(config.feedback, "gpus", 0.0)):
        return (Memory(SCORERS, len(models), "host", {"models": largest, **runtime}),)
    waiting = runtime | ({"models": largest} if getattr(config.cluster, "layout", "") == "time-shared" else {})
    on_gpu = Memory(SCORERS, len(models), "device", {"models": largest})
    return on_gpu, Memory(WAITING, len(models), "host", waiting)


def driver_memory(config: Config, shape: ModelShape, device: Device) -> tuple[Memory, ...]:
    """What the driver opens itself: models that measure, in float32; the scorecard's, one at a time; and scorers while
    they are trained, with AdamW on all of their weights."""
    own_device, weights, training = driver_device(config, device), 4.0 * shape.parameters, dict[str, float]()
    card, width = config.scorecard.used if config.scorecard_prompts else (), _width(config)
    if config.trained_scorers or config.traits.policy_gradient or None in card:
        training["model"] = weights
        if config.scorers.parameters != "head":
            tokens = 2 * config.scorers.optimiser.batch_pairs * shape.text_tokens
            activations = layer_bytes(tokens, _sizes(shape, "float32", None, own_device))
            training |= {"gradients": weights, "optimizer": 2 * weights, "activations": activations}
    sizes = [weights if spec is None else 1.0 * width * (parameters_in(spec.path) or shape.parameters) for spec in card]
    measuring = {key: 4.0 * count for key, count in measuring_models(config).items()}
    parts = {MEASURING: measuring, HELD_OUT: {"models": max(sizes)} if sizes else {}, TRAINING: training}
    where: Literal["host", "device"] = "host" if own_device == "cpu" else "device"
    return tuple(Memory(part, 1, where, amounts, part == TRAINING) for part, amounts in parts.items())


def measuring_models(config: Config) -> dict[str, int]:
    """Numbers in each model that measures a limit or the reward, by the setting that names it."""
    models = [
        entry for entry in (*config.stated, config.computed_reward) if entry and entry.source.kind in MODEL_SOURCES
    ]
    sizes = {entry.where.removeprefix("recipe: "): parameters_in(entry.source.what) for entry in models}
    return {key: count for key, count in sizes.items() if count}


def trainer_bytes(config: Config, shape: ModelShape, device: Device = "cpu") -> dict[str, float]:
    """Bytes of one rank (docs/performance.md has the formula)."""
    rank = config.model.parameters if isinstance(config.model.parameters, LoraParameters) else None
    ranks, budget = config.trainer.workers, config.trainer.activation_gib
    pairs = config.trainer.micro_pairs or -(-_largest_batch(config) // ranks)
    need = memory_need(
        parameters=shape.parameters,
        trained=trained_parameters(config, shape),
        vocabulary=shape.vocabulary,
        sizes=_sizes(shape, config.model.dtype, None if rank is None else rank.rank, device),
        tokens=pairs * (2 * shape.text_tokens - shape.prompt_tokens),
        stage=int(config.trainer.engine[-1]) if config.trainer.engine.startswith("zero") else 0,
        ranks=ranks,
        activation_budget=None if budget is None else budget * GIB,
        device=device,
        in_nf4=_numbers_in_nf4(config, shape),
    )
    # while it works, Safe RLHF's two critics in float32: weights, gradients and both moments of AdamW
    critics = {"critics": 2 * 16.0 * shape.parameters} if config.algorithm == "safe-rlhf" else {}
    return {**need, **critics}


def _sizes(shape: ModelShape, dtype: str, adapter_rank: int | None, device: str) -> Sizes:
    # Imported here: only the plan of a language model needs torch.
    from pddpo_ray.training.passes.shape_memory import sizes_of_shape

    prompt = shape.prompt_tokens or 1
    architecture = shape.architecture
    if not architecture:
        inside = (shape.parameters - 2 * shape.vocabulary * shape.hidden) / shape.layers
        intermediate = max(1, round((inside / shape.hidden - 4 * shape.hidden) / 3))
        architecture = _llama(shape.hidden, shape.layers, shape.vocabulary, intermediate, max(1, shape.hidden // 128))
    return sizes_of_shape(architecture, dtype, adapter_rank, prompt, max(1, shape.text_tokens - prompt), device)


def _numbers_in_nf4(config: Config, shape: ModelShape) -> int:
    return shape.linear_numbers if config.model.in_nf4 else 0


def _narrow_base(config: Config, shape: ModelShape) -> dict[str, float]:
    """The base of 4 bits beside the whole weights that it stands for."""
    narrow = weight_bytes(shape.parameters, _width(config), _numbers_in_nf4(config, shape))
    return {"base in NF4": narrow} if config.model.in_nf4 else {}


def trained_parameters(config: Config, shape: ModelShape) -> int:
    parameters = config.model.parameters
    return parameters.rank * shape.linear_sizes if isinstance(parameters, LoraParameters) else shape.parameters


def rollout_bytes(config: Config, shape: ModelShape, device: Device, gpu_bytes: float = 0.0) -> dict[str, float]:
    """Bytes of one engine per device: its share of the weights, and the key-value cache: on a GPU of known size what
    vLLM makes of its share of the GPU, else `kv_cache_gib`."""
    width = _width(config)
    weights = float(shape.parameters * width)
    if isinstance(config.rollout, VllmRollout):
        weights /= config.rollout.tensor_parallel if device == "cuda" else 1
        share = config.rollout.gpu_memory * gpu_bytes if device == "cuda" else 0.0
        return {"weights": weights, "cache": max(config.rollout.kv_cache_gib * GIB, share - weights)}
    # transformers keeps keys and values of a whole batch
    sequences = getattr(config.rollout, "max_sequences", 1)
    cache = 2.0 * shape.layers * shape.hidden * shape.text_tokens * sequences * width
    return {"weights": weights, "cache": cache}


ENGINE_ASLEEP_BYTES = 1.5 * GIB
"""What a sleeping vLLM engine keeps on its GPU: CUDA context, graphs and communication buffers."""
CONTEXT_BYTES = 0.5 * GIB
"""What CUDA keeps for a process that uses a GPU. What torch frees is given back after every command."""


def time_shared_bytes(
    trainer: Mapping[str, float], rollout: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """A shared GPU's bytes in its states: the trainer works and the engine sleeps; the engine is awake while the
    trainer keeps weights and optimiser; and what is beside a scorer at its turn."""
    resident = {f"trainer's {purpose}": trainer[purpose] for purpose in ("weights", "optimizer", "context")}
    asleep = {"engine asleep": ENGINE_ASLEEP_BYTES}
    return {**trainer, **asleep}, {**rollout, **resident}, {**resident, **asleep}


def _largest_batch(config: Config) -> int:
    stages: tuple[Stage, ...] = ("reward", "cost", "first_reward", "first_cost")
    return max(config.trainer.of_stage(stage).batch_pairs for stage in stages)


def stored_bytes(config: Config, shape: ModelShape | None) -> float:
    """Artifacts of the whole run: the reference, one reward policy and one policy per round, scorers that are trained.

    Adapters are float32; whole weights are made of the newest of them for the engines. A whole version in bfloat16 has
    its float32 masters beside it while a fit may start from them, and any version the moments that are carried.
    """
    if shape is None:
        return 0.0
    width, versions = _width(config), 2 * config.rounds
    beside = 4.0 * shape.parameters * len(config.trained_scorers)
    if config.trainer.moments == "carried":
        beside += 8.0 * min(versions, KEPT_BESIDE) * trained_parameters(config, shape)
    parameters = config.model.parameters
    if isinstance(parameters, LoraParameters):
        merged = min(config.rounds, KEPT_WHOLE) * len(copies_of_engine(config, shape))
        bases = width * (1 + merged) * shape.parameters + sum(_narrow_base(config, shape).values())
        return beside + bases + 4.0 * versions * parameters.rank * shape.linear_sizes
    masters = 4 * min(versions, KEPT_BESIDE) if width == 2 else 0
    return beside + float(shape.parameters * (width * (1 + versions) + masters))


KEPT_BESIDE = 4
"""Versions with masters or moments: those of the last two rounds, of either stage."""


def _width(config: Config) -> int:
    """Bytes of a number in the type that the run computes in."""
    return 2 if config.model.dtype == "bfloat16" else 4
