"""Copies of a model in the host's memory, measured while it is stored and trained, against what the plan counts."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pddpo_ray.config import load
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.plan.memory import (
    FIRST_RANK,
    RUNTIME_BYTES,
    STORING,
    TRAINER_PROCESS,
    Memory,
    ModelShape,
    memory,
)
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training import fit
from pddpo_ray.training.local import load_trainer, store_reference

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LARGE = {**SMALL, "hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8}
ROWS = tuple(PairRow(f"r{i}", (1, 5 + i), (7, 2), (40, 2)) for i in range(8))

STORED = """
import sys, threading, time, torch
from pathlib import Path
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import store_reference

def own():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))

before, most, ended = own(), [0], threading.Event()
def watch():
    while not ended.wait(0.002):
        most[0] = max(most[0], own())
watcher = threading.Thread(target=watch)
watcher.start()
store_reference(ArtifactStore(sys.argv[2]), Path(sys.argv[1]), None, "bfloat16")
ended.set(); watcher.join()
print(most[0] - before)
"""


class Alive:
    """Bytes of the tensors that a function has given out and that somebody still holds, and the most at a time."""

    def __init__(self) -> None:
        self.bytes = self.most = self.calls = 0

    def watched(self, function: Callable[..., Mapping[str, Tensor]]) -> Callable[..., Mapping[str, Tensor]]:
        def call(*arguments: Any, **named: Any) -> Mapping[str, Tensor]:
            made = function(*arguments, **named)
            self.calls += 1
            for tensor in made.values():
                self.bytes += tensor.nbytes
                weakref.finalize(tensor, self._gone, tensor.nbytes)
            self.most = max(self.most, self.bytes)
            return made

        return call

    def _gone(self, size: int) -> None:
        self.bytes -= size


def planned(parameters: int, *overrides: str) -> dict[str, Memory]:
    """What the plan counts on the host for a fit of all of so many parameters in bfloat16, by process."""
    config = load("text-world", ["model.dtype=bfloat16", "cluster.mode=ray", "trainer.workers=2", *overrides])
    shape = ModelShape(parameters, 64, 2, 90, 0, 16)
    return {need.part: need for need in memory(config, shape, "cuda") if need.where == "host"}


@pytest.mark.run
@pytest.mark.parametrize("held_out", [0.0, 0.5])
def test_a_fit_holds_as_many_copies_of_its_weights_on_the_host_as_the_plan_counts(
    held_out: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that is written, the best weights of a fit that looks at pairs kept apart, and a carried start."""
    LlamaForCausalLM(LlamaConfig(vocab_size=90, **SMALL)).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    store = ArtifactStore(tmp_path / "store")
    reference = store_reference(store, tmp_path / "model", None, "bfloat16")
    trainer: Any = load_trainer(store.folder(reference.path), store, reference, "bfloat16")
    parameters = sum(parameter.numel() for parameter in trainer.engine.scorer.model.parameters())
    settings = FitSettings(steps=40, batch_pairs=4, support=0.0, held_out=held_out, learning_rate=1e-4)
    alive, best = Alive(), Alive()

    def fitted(number: int, name: str, start: Start) -> PolicyVersion:
        command = FitCommand(number, start, Objective("reward", reference, 0.1), ROWS, settings, 1, name)
        version: PolicyVersion = trainer.execute(command).version
        return version

    one = fitted(1, "reward-1", Start(reference))
    two = fitted(2, "policy-1", Start(one))
    monkeypatch.setattr(fit, "_copy_weights", best.watched(alive.watched(fit._copy_weights)))
    for name in ("_read_weights", "carry"):
        monkeypatch.setattr(trainer, name, alive.watched(getattr(trainer, name)))
    monkeypatch.setattr(trainer.engine, "weights", alive.watched(trainer.engine.weights))
    fitted(3, "policy-2", Start(two, plus=two, minus=one, scale=0.5))
    assert (best.calls > 1) == bool(held_out), "the best weights are copied, and copied again"
    plan = planned(parameters, f"trainer.held_out={held_out}")
    assert plan[TRAINER_PROCESS].count == 2, "every rank keeps the best weights"
    each = plan[TRAINER_PROCESS].each - RUNTIME_BYTES["trainer"]
    assert best.most == each
    assert alive.most <= plan[FIRST_RANK].each + each


@pytest.mark.full
@pytest.mark.run
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_the_driver_stores_a_reference_in_the_memory_that_is_planned(stored: torch.dtype, tmp_path: Path) -> None:
    """Its own memory, mapped files left out, in a process of its own."""
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32_000, **LARGE))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.to(stored).save_pretrained(tmp_path / "model")
    command = [sys.executable, "-c", STORED, str(tmp_path / "model"), str(tmp_path / "store")]
    growth = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
    assert growth <= planned(parameters)[STORING].each + 0.3 * 2 * parameters
