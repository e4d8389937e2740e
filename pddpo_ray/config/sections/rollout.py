"""What samples answers: vLLM, transformers, or draws from tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pddpo_ray.config.sections.section import Strict


class RolloutCommon(Strict):
    """Sampling; the same for every engine."""

    engines: int = Field(1, ge=1)
    """Engines that share the prompts. Results do not depend on their number."""
    max_tokens: int = Field(32, ge=1)
    """Longest answer, in tokens."""
    candidates: int = Field(16, ge=2)
    """Answers per prompt from which the explorer chooses, half from the policy and half from the proposal."""
    proposal_temperature: float = Field(1.0, gt=0)
    """Temperature of the reference as the broader proposal (1 to 1.2), relative to `policy.temperature`. What nobody
    proposes cannot be explored."""
    canary_tolerance: float = Field(1e-4, gt=0)
    """Largest difference per token between engine and trainer. Not given in bfloat16: 0.02, merged adapters 0.2."""
    deadline_s: float = Field(600.0, gt=0)
    """Longest wait for one batch of answers, or for their labels by a world or a model, in seconds."""


class VllmRollout(RolloutCommon):
    """vLLM: weights updated in place, version by version."""

    engine: Literal["vllm"] = "vllm"
    """Tag of this variant."""
    tensor_parallel: int = Field(1, ge=1)
    """Devices per engine."""
    threads: int = Field(1, ge=1)
    """CPU threads per engine."""
    max_model_len: int = Field(256, ge=8)
    """Longest prompt and answer together, in tokens."""
    max_sequences: int = Field(128, ge=1)
    """Sequences decoded at a time."""
    kv_cache_gib: float = Field(0.5, gt=0)
    """Key-value cache on a CPU, in GiB."""
    gpu_memory: float = Field(0.5, gt=0, le=1)
    """Share of a GPU's memory that the engine may take."""
    delivery: Literal["reload", "native"] = "reload"
    """How weights arrive. reload: the engine reads them from the artifact store. native: adapters as files, whole
    weights through vLLM's own transfer on GPUs (NCCL in the split layout, CUDA IPC in the time-shared one)."""


class TransformersRollout(RolloutCommon):
    """`transformers` generation: slower, runs everywhere."""

    engine: Literal["transformers"] = "transformers"
    """Tag of this variant."""
    max_sequences: int = Field(128, ge=1)
    """Sequences decoded at a time."""


class TabularRollout(RolloutCommon):
    """Draws from tables: of tabular worlds, and of exact sums where a text world is learned by a log-linear model."""

    engine: Literal["tabular"] = "tabular"
    """Tag of this variant."""


Rollout = Annotated[VllmRollout | TransformersRollout | TabularRollout, Field(discriminator="engine")]
