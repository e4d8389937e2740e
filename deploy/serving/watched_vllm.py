"""vLLM's asynchronous engine, which refuses an answer whose tokens came from other weights than it holds."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from deploy.serving.settings import EngineSettings
from pddpo_ray.errors import RunError
from pddpo_ray.rollout.vllm_native import adapter_options
from pddpo_ray.rollout.vllm_start import vllm_options


def watched_engine(settings: EngineSettings) -> Any:
    """The engine of these settings; call it after `prepare_process`."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    class WatchedEngine(AsyncLLM):  # type: ignore[misc]
        verified_at = -1e9
        _held: str | None = None

        def holds(self, version: str | None) -> None:
            self._held = version

        async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            held = self._held
            async for output in super().generate(*args, **kwargs):
                if output.finished:
                    demand_version(output, held)
                    self.verified_at = time.monotonic()
                yield output

    options = vllm_options(Path(settings.model), settings, settings.dtype)
    if settings.weights == "adapters":
        options |= {"max_loras": 16, "max_cpu_loras": 256}
        options |= adapter_options(Path(settings.model), settings.adapter_rank)
    return WatchedEngine.from_engine_args(AsyncEngineArgs(enable_log_requests=False, **options))


def demand_version(output: Any, held: str | None) -> None:
    """Raise RunError where a finished answer names another weight version than the engine was given."""
    if held is None:
        return
    for completion in output.outputs:
        versions = {span.version for span in completion.weight_versions or ()}
        if versions - {held}:
            raise RunError(f"an answer came from weight version {sorted(versions)}, the engine holds {held}")
