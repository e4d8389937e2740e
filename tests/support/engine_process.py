"""A vLLM engine in a process of its own, so that what it does to its process (threads, process groups, compiler
switches) ends with it and cannot reach another test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.managers import BaseManager, NamespaceProxy  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from pddpo_ray.storage.artifacts import ArtifactStore


class EngineProxy(NamespaceProxy):
    """Attributes and methods of the engine, one call each."""

    _exposed_ = ("__getattribute__", "deliver", "sample", "score", "close")

    def deliver(self, *args: Any) -> Any:
        return self._callmethod("deliver", args)

    def sample(self, *args: Any) -> Any:
        return self._callmethod("sample", args)

    def score(self, *args: Any) -> Any:
        return self._callmethod("score", args)

    def close(self) -> Any:
        return self._callmethod("close")


class EngineManager(BaseManager):
    """The engine's process."""

    def vllm(self, name: str, model: Path, store: str, temperature: float) -> Any:
        return self.make_vllm(name, model, store, temperature)  # type: ignore[attr-defined]


def make_vllm(name: str, model: Path, store: str, temperature: float) -> Any:
    from pddpo_ray.rollout.vllm_engine import VllmEngine, VllmSettings
    from pddpo_ray.rollout.vllm_start import prepare_process

    prepare_process()
    settings = VllmSettings(max_model_len=128, kv_cache_gib=0.1, temperature=temperature)
    return VllmEngine(name, model, ArtifactStore(store), settings)


def make_adapters(name: str, model: Path, store: str, rank: int, alpha: float, temperature: float) -> Any:
    from pddpo_ray.config import LoraParameters
    from pddpo_ray.rollout.vllm_engine import VllmSettings
    from pddpo_ray.rollout.vllm_native import AdapterVllmEngine
    from pddpo_ray.rollout.vllm_start import prepare_process

    prepare_process()
    settings = VllmSettings(max_model_len=128, kv_cache_gib=0.1, temperature=temperature)
    return AdapterVllmEngine(name, model, ArtifactStore(store), settings, LoraParameters(rank=rank, alpha=alpha))


EngineManager.register("make_vllm", make_vllm, EngineProxy)
EngineManager.register("make_adapters", make_adapters, EngineProxy)


@contextmanager
def vllm_process(name: str, model: Path, store: ArtifactStore, temperature: float = 1.0) -> Iterator[Any]:
    manager = EngineManager(ctx=get_context("spawn"))
    manager.start()
    try:
        yield manager.vllm(name, model, store.root, temperature)
    finally:
        manager.shutdown()


@contextmanager
def adapters_process(
    name: str, model: Path, store: ArtifactStore, *, rank: int, alpha: float, temperature: float = 1.0
) -> Iterator[Any]:
    """An engine that takes adapters on the base in `model`."""
    manager = EngineManager(ctx=get_context("spawn"))
    manager.start()
    try:
        yield manager.make_adapters(name, model, store.root, rank, alpha, temperature)  # type: ignore[attr-defined]
    finally:
        manager.shutdown()
