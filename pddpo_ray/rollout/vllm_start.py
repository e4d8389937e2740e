"""How vLLM is started, for the run's engines and for the served endpoint: environment and common arguments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol


class Resources(Protocol):
    """What a recipe or an endpoint's settings say about an engine."""

    @property
    def max_model_len(self) -> int: ...

    @property
    def kv_cache_gib(self) -> float: ...

    @property
    def gpu_memory(self) -> float: ...

    @property
    def tensor_parallel(self) -> int: ...


def prepare_process(threads: int = 1) -> None:
    """Environment that vLLM reads while it is imported; call it first in a process that will hold an engine.

    One process per engine (no engine core of its own: that costs a second start); no thread binding, because several
    engines and trainers share the cores; no usage report to anyone.
    """
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        TOKENIZERS_PARALLELISM="false",
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))


def without_compiling() -> bool:
    """Whether this is a machine without a GPU; then nothing is compiled here, nor in processes that are started here.

    On a CPU vLLM compiles its rank counter for log-probabilities alone, and that takes half a minute.
    """
    import torch

    if torch.cuda.is_available():
        return False
    torch._dynamo.config.disable = True
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    return True


def vllm_options(model: Path, settings: Resources, dtype: str) -> dict[str, Any]:
    """Arguments of every vLLM engine; call it after `prepare_process`."""
    options: dict[str, Any] = {"gpu_memory_utilization": settings.gpu_memory}
    if without_compiling():
        options = {"enforce_eager": True, "kv_cache_memory_bytes": int(settings.kv_cache_gib * 2**30)}
    return options | {
        "model": str(model),
        "dtype": dtype,
        # Sampling settings come with every request, whatever the model's folder suggests.
        "generation_config": "vllm",
        "max_model_len": settings.max_model_len,
        "tensor_parallel_size": settings.tensor_parallel,
        # Left to choose, vLLM takes Ray inside a placement group, whose bundles may then have one GPU each.
        "distributed_executor_backend": "uni" if settings.tensor_parallel == 1 else "mp",
        "seed": 0,
        "trust_remote_code": False,
        "disable_log_stats": True,
    }
