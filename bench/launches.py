"""What a training step asks of a GPU, counted on meta tensors: kernels, casts, reads by the host, copies to the device.

python -m bench.launches              # writes bench/results/launches.md, a minute on a core

The optimiser counts as its loops over tensors: on CUDA it is one kernel, so the numbers are upper bounds. Up to 1.5
billion parameters a GPU gets a pass in one launch, from a recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from bench.planned_memory import RANK, SHAPES, made
from bench.simulated_card import SimulatedCard
from pddpo_ray.contracts import FitSettings
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import texts_of
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import PairLoss, PairPass
from pddpo_ray.training.passes.log_probs import ResponseScorer, Support

PAGE, RESULT = Path("bench/results/launches.md"), Path("bench/results/launches.json")
SHAPE, PAIRS, LENGTHS = "135M (SmolLM2)", 16, (30, 200)


@dataclass(frozen=True)
class Asked:
    """Of one pass, forward and backward, and of the optimiser's step behind it."""

    launches: int
    casts: int
    reads: int
    writes: int
    step_launches: int
    step_reads: int


def begun_engine(shape: Mapping[str, int], rank: int | None) -> TorchEngine:
    """Of a model without memory, before its first step."""
    engine = TorchEngine(ResponseScorer(made(shape, rank, torch.bfloat16), "packed", device="cuda"))
    # torch fuses no step of meta tensors
    with patch("pddpo_ray.training.engine.FUSED_FROM", 10**12):
        engine.begin(FitSettings())
    return engine


def pass_over(engine: TorchEngine, rows: Sequence[PairRow], supports: bool) -> SimulatedCard:
    """What a pass over the rows, forward and backward, asked of a card. `supports`: four of the reference's words at
    every response token enter the loss, as by default."""
    texts = texts_of(rows)
    words = [Support(np.full(len(text[1]), 4), np.tile([5, 6, 7, 8], len(text[1]))) for text in texts]
    objective = Objective("reward", PolicyVersion(0, "reference", "", ""), 0.1)
    with SimulatedCard() as card:
        given = PairPass.of(
            engine.scorer,
            rows,
            base=[-20.0] * len(texts),
            margins=[0.0] * len(rows),
            supports=words if supports else None,
            whole=(len(rows), len(texts), 1.0),
        )
        engine.accumulate(PairLoss(engine.scorer, objective, support_weight=0.5), given)
    return card


def counted(shape: str, rank: int | None, pairs: int, supports: bool) -> Asked:
    """Of a named shape."""
    engine = begun_engine(SHAPES[shape], rank)
    card = pass_over(engine, drawn_rows(pairs, LENGTHS), supports)
    with SimulatedCard() as step:
        engine.update(1e-4)
    return Asked(card.launches, card.casts.total(), card.reads, card.writes, step.launches, step.reads)


def drawn_rows(count: int, lengths: tuple[int, int]) -> list[PairRow]:
    """Pairs of drawn tokens; prompts and answers have lengths from the first to below the second."""
    rng = np.random.default_rng([count])
    texts = [tuple(rng.integers(3, 90, size).tolist()) for size in rng.integers(*lengths, 3 * count)]
    return [PairRow(f"r{i}", texts[3 * i], texts[3 * i + 1], texts[3 * i + 2]) for i in range(count)]


def results() -> Iterator[tuple[str, Asked]]:
    for rank in (None, RANK):
        for supports in (False, True):
            trained = "all weights" if rank is None else f"adapters of rank {rank}"
            yield f"{trained}, {'with' if supports else 'without'} supports", counted(SHAPE, rank, PAIRS, supports)


def page(found: dict[str, Asked]) -> str:
    told = (
        f"# What a step of {PAIRS} pairs asks of a GPU\n\n"
        f"{SHAPE} in bfloat16, counted on meta tensors: no card took part. Upper bounds: the optimiser counts as its\n"
        "loops. Besides, loss and accuracy are one read a step. Up to 1.5 billion\n"
        "parameters a GPU replays a pass in one launch. `python -m bench.launches` writes this page.\n\n"
    )
    columns = (
        "kernels of a pass",
        "of them casts",
        "reads",
        "copies to the device",
        "kernels of the step",
        "its reads",
    )
    head = f"| trained | {' | '.join(columns)} |"
    lines = [
        f"| {name} | {' | '.join(f'{value:,}' for value in asdict(one).values())} |" for name, one in found.items()
    ]
    return told + "\n".join([head, "|---" * 7 + "|", *lines]) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    made_now = dict(results())
    RESULT.write_text(
        json.dumps({name: asdict(one) for name, one in made_now.items()}, indent=2) + "\n", encoding="utf-8"
    )
    PAGE.write_text(page(made_now), encoding="utf-8")
