"""G6: what it takes to go from one policy to another, with all weights and with an adapter.

In place: the trainer's engine takes over weights that lie in the device's memory already; the bound is reading and
writing them once. Delivered: an inference engine takes a version from the store, with names, shapes and hash checked,
as before every round. After every swap that counts, log-probabilities or the hash must be those of the new policy.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from bench.device import wall_clock
from bench.limits import REACHED_BYTES
from bench.own_process import alone
from bench.ratio import Ratio, assert_same, of_pairs
from bench.rollout import Setting, stored
from bench.workload import ALPHA, RANK, Shape, preference_rows, trained_weights
from pddpo_ray.config import LoraParameters
from pddpo_ray.contracts import FitCommand, FitSettings, RolloutEngine, Start
from pddpo_ray.records import Objective, PolicyVersion
from pddpo_ray.rollout.vllm_engine import VllmEngine, VllmSettings
from pddpo_ray.rollout.vllm_native import AdapterVllmEngine
from pddpo_ray.rollout.vllm_start import prepare_process
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.batches import texts_of
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.models.lora import load_lora_trainer
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts

Way = Literal["whole", "adapter"]


def in_place(shape: Shape, repeats: int = 5, name: str = "G6") -> list[Ratio]:
    """What it may take, 60 ms for all weights of a 7B model and 10 ms for an adapter, over wall seconds."""
    found = []
    for way, allowed in (("whole", 0.060), ("adapter", 0.010)):
        swap = Swap(shape, way == "adapter")
        swap.assert_taken_over()
        seconds = [wall_clock(shape.device)(swap) for _ in range(repeats)]
        bound = 2 * swap.size / REACHED_BYTES
        details = {"ms": 1e3 * float(np.median(seconds)), "ms at least": 1e3 * bound, "MB": swap.size / 1e6}
        pairs = [(allowed, spent) for spent in seconds]
        found.append(
            of_pairs(f"{name}-{way}", f"policy swap, {way}: allowed / ours", pairs, floor=1.0, details=details)
        )
    return found


class Swap:
    """Takes over one of two policies in turn."""

    def __init__(self, shape: Shape, adapters: bool) -> None:
        models = [shape.trained(seed, adapters) for seed in (1, 2)]
        self._tolerance = shape.tolerance
        self._weights = [trained_weights(model) for model in models]
        self.size = float(sum(tensor.nbytes for tensor in self._weights[0].values()))
        # an adapter says the same only on its own base
        self._engine = TorchEngine(ResponseScorer(models[0]))
        self._texts = texts_of(preference_rows(shape.vocabulary, 2))
        self._turn = 0

    def __call__(self) -> None:
        self._turn = 1 - self._turn
        self._engine.load(self._weights[self._turn])

    def assert_taken_over(self) -> None:
        """Raises RuntimeError unless another policy says something else and the first one the same again."""
        before, other, again = (self._said() for _ in range(3))
        assert_same(before, again, self._tolerance)
        if before == other:
            raise RuntimeError("after the swap the model says what it said before")

    def _said(self) -> float:
        said = float(score_texts(self._engine.scorer, self._texts).sum())
        self()
        return said


def delivered(shape: Shape, repeats: int = 5, name: str = "G6-delivery") -> Ratio:
    """Wall seconds of delivering whole weights to vLLM over those of delivering an adapter, two engines one by one."""
    whole, adapter = (alone(partial(deliveries, shape, way, repeats)) for way in ("whole", "adapter"))
    details = {"whole s": float(np.median(whole)), "adapter s": float(np.median(adapter))}
    what = "delivery of a policy to vLLM, checked: whole weights / adapter"
    return of_pairs(name, what, list(zip(whole, adapter, strict=True)), details=details)


def deliveries(shape: Shape, way: Way, repeats: int) -> list[float]:
    """Wall seconds of delivering a trained version, the reference in between. Raises RuntimeError on a wrong hash."""
    with tempfile.TemporaryDirectory() as place:
        reference = stored(Setting(shape).model(), Path(place))
        version = one_step(shape, Path(place), reference)
        engine = engine_for(way, shape, Path(place))
        seconds = []
        for _ in range(repeats):
            engine.deliver(reference)
            delivery = engine.deliver(version)
            if delivery.sha256 != version.sha256:
                raise RuntimeError(f"the engine took over {delivery.sha256}, not {version.sha256}")
            seconds.append(delivery.seconds)
        return seconds


def one_step(shape: Shape, folder: Path, reference: PolicyVersion) -> PolicyVersion:
    """A version in the store that is an adapter after one optimiser step."""
    store = ArtifactStore(folder / "artifacts")
    trainer = load_lora_trainer(folder / "model", store, reference, rank=RANK, alpha=ALPHA, dtype=shape.number_type)
    settings = FitSettings(steps=1, batch_pairs=2, support=0.0)
    rows, objective = tuple(preference_rows(shape.vocabulary, 2)), Objective("reward", reference, 0.1)
    return trainer.execute(FitCommand(1, Start(reference), objective, rows, settings, 1, "reward-1")).version


def engine_for(way: Way, shape: Shape, folder: Path) -> RolloutEngine:
    """vLLM with a fifth of the device's memory: the trainer and the peers need the rest."""
    prepare_process(1)
    settings = VllmSettings(dtype=shape.number_type, max_model_len=512, max_sequences=256, gpu_memory=0.2)
    model, store = folder / "model", ArtifactStore(folder / "artifacts")
    if way == "whole":
        return VllmEngine("bench", model, store, settings)
    return AdapterVllmEngine("bench", model, store, settings, LoraParameters(rank=RANK, alpha=ALPHA))
