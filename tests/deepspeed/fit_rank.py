"""One rank of small fits on several engines, one after the other; run as a program by the tests."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from actors.launch import COLLECTIVES
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import Shard
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.models.lora import load_lora_trainer
from pddpo_ray.training.passes import memory
from pddpo_ray.training.passes.log_probs import ResponseScorer
from tests.support.tiny_language_model import tiny_llama

memory.REDUCED = 3000
"""Gradients of these small models take several of DeepSpeed's buffers, and some weights are larger than one."""
MOMENTUM = 0.75
"""Of AdamW, in the one step that its optimiser is read after; not the recipe's."""


def rows(count: int = 24) -> tuple[PairRow, ...]:
    """Chosen answers use low words, rejected ones high words; lengths differ."""
    rng = np.random.default_rng(3)

    def answer(low: int, high: int) -> tuple[int, ...]:
        return (*(int(t) for t in rng.integers(low, high, int(rng.integers(3, 9)))), 2)

    return tuple(PairRow(f"r{i}", (1, 5 + i % 7, 9), answer(4, 40), answer(44, 88)) for i in range(count))


def trainer_of(name: str, store: ArtifactStore, reference: PolicyVersion, shard: Shard) -> LocalTrainer:
    """`torch`, `zero1` ... or the same with `lora-` or `bf16-` in front."""
    from actors.workers import make_engine

    if name.startswith("lora-"):
        return load_lora_trainer(
            store.folder(reference.path),
            store,
            reference,
            rank=4,
            alpha=16.0,
            make_engine=lambda scorer: make_engine(name.removeprefix("lora-"), scorer, shard),
        )
    if name.startswith("bf16-"):
        scorer = ResponseScorer(tiny_llama(4).bfloat16())
        engine = make_engine(name.removeprefix("bf16-"), scorer, shard, dtype="bfloat16")
        return LocalTrainer(engine, store, reference)
    return LocalTrainer(make_engine(name, ResponseScorer(tiny_llama(4)), shard), store, reference)


def report(name: str, folder: Path, shard: Shard) -> dict[str, Any]:
    """Fits of both stages, the first one repeated. -> losses, norms, scores, hashes, names"""
    store = ArtifactStore(folder / "store")
    reference = store_reference(store, folder / "reference")
    trainer = trainer_of(name, store, reference, shard)
    if not name.startswith("lora-"):
        # before the fits: DeepSpeed's view of an optimiser's state is that of the first one
        gradient = gradient_of(trainer)
        if shard.rank == 0:
            np.save(folder / f"gradient-{name}-{shard.ranks}.npy", gradient)
    # The store keeps the masters of a version that it has: fits of another number of ranks are other versions.
    result = f"{name}-{shard.ranks}"
    # 10 pairs a batch over 24 rows: shares are unequal, and micro-batches of 2 leave a remainder.
    settings = FitSettings(steps=6, learning_rate=5e-4, batch_pairs=10, micro_pairs=2)
    reward = FitCommand(1, Start(reference), Objective("reward", reference, 0.1), rows(), settings, 5, f"{result}-r")
    if name.startswith("lora-"):
        settings = settings.model_copy(update={"learning_rate": 2e-3})
        reward = replace(reward, settings=settings)
    first = trainer.execute(reward)
    between = settings.model_copy(update={"learning_rate": 3e-4, "max_grad_norm": 0.1, "micro_pairs": None})
    cost = Objective("cost", first.version, 0.1, multiplier=0.7)
    second = trainer.execute(FitCommand(2, Start(first.version), cost, rows(), between, 6, f"{result}-c"))
    again = trainer.execute(reward)
    longer = trainer.execute(replace(reward, settings=settings.model_copy(update={"steps": 12})))
    gentle, resumed = masters_of(trainer, reward)
    answers = [Response(r.id, Prompt("p", r.prompt, ""), r.chosen, "", 0, 0) for r in rows(8)]
    return {
        "losses": [run.metrics["fit/loss"] for run in (first, longer, second)],
        "norms": [run.metrics["fit/gradient_norm"] for run in (first, second)],
        "scores": [*trainer.log_probs(first.version, answers), *trainer.log_probs(second.version, answers)],
        "first": first.version.sha256,
        "again": again.version.sha256,
        "gentle": gentle,
        "resumed": resumed,
        "names": sorted(store.read_torch(first.version.path, first.version.sha256)),
    }


def masters_of(trainer: LocalTrainer, reward: FitCommand) -> tuple[float, bool]:
    """Share of masters outside the embedding that a fit at 1e-6 moves; whether its version gives them back (rank 0)."""
    trainer.load(trainer.reference)
    before = trainer.engine.weights()
    settings = reward.settings.model_copy(update={"learning_rate": 1e-6, "micro_pairs": None})
    version = trainer.execute(replace(reward, settings=settings, result=f"gentle-{reward.result}")).version
    made = trainer.engine.weights()
    inside = [name for name in before if "embed_tokens" not in name]
    moved = sum(int((before[name] != made[name]).sum()) for name in inside)
    trainer.load(trainer.reference)
    trainer.load(version)
    again = trainer.engine.weights()
    if trainer.engine.shard.rank > 0:
        return 0.0, not made
    return moved / sum(before[name].numel() for name in inside), all(torch.equal(made[n], again[n]) for n in made)


def gradient_of(trainer: LocalTrainer) -> np.ndarray:
    """Gradient of the chosen answers' mean log-probability, at the reference; ranks take turns. -> [parameters]

    Read from the optimiser: after its first step AdamW's mean is (1 - MOMENTUM) times the gradient.
    """
    engine = trainer.engine
    trainer.load(trainer.reference)
    engine.begin(FitSettings(steps=1, max_grad_norm=1e9, momentum=MOMENTUM))
    texts = [(row.prompt, row.chosen) for row in rows()]
    own = texts[engine.shard.rank :: engine.shard.ranks]
    engine.backward(engine.scorer.log_probs(own)[0].sum() / len(texts))
    engine.update(0.0)
    if isinstance(engine, TorchEngine):
        assert engine._optimizer is not None
        means = [engine._optimizer.state[parameter]["exp_avg"] for parameter in engine._trainable]
    else:
        from deepspeed.utils import safe_get_full_optimizer_state

        means = [safe_get_full_optimizer_state(p, "exp_avg") for p in engine.scorer.model.parameters()]
    return np.concatenate([mean.float().reshape(-1).numpy() for mean in means]) / (1 - MOMENTUM)


def main(names: str, output: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    # the group of a run with GPUs, gloo in NCCL's place
    dist.init_process_group(COLLECTIVES.replace("nccl", "gloo"))
    shard = Shard(dist.get_rank(), dist.get_world_size())
    reports = {name: report(name, folder, shard) for name in names.split(",")}
    if shard.rank == 0:
        output.write_text(json.dumps(reports))
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
