"""A trainer backend whose fits are sums over ranks: exact, as slow as told, and with a file for every step."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pddpo_ray.contracts import FitCommand, FitResult, FitSettings, Start
from pddpo_ray.records import Array, Objective, PairRow, PolicyVersion, Response
from pddpo_ray.training.progress import PROGRESS

REFERENCE = PolicyVersion(0, "reference", "0" * 64, "reference")


class SummingBackend:
    """A fit that adds up seeded numbers over all ranks by a real all-reduce; one file per step, as slow as told."""

    def __init__(self, rank: int, ranks: int, folder: Path) -> None:
        self.rank, self.ranks, self.folder = rank, ranks, folder

    def execute(self, command: FitCommand) -> FitResult:
        import torch
        import torch.distributed as dist

        if command.seed < 0:
            raise ValueError(f"seed {command.seed} is negative\nand that is that")
        rng = np.random.default_rng([command.seed, self.rank])
        total = torch.zeros(1, dtype=torch.float64)
        for step in range(command.settings.steps):
            share = torch.tensor(rng.normal(size=1))
            dist.all_reduce(share)
            total += share
            (self.folder / f"{command.result}-rank{self.rank}-step{step}").write_text(str(os.getpid()))
            self.step_done()
            time.sleep(command.settings.learning_rate)
        version = PolicyVersion(command.sequence, command.result, f"{float(total):.17g}", command.result)
        return FitResult(version, {"fit/steps": float(command.settings.steps)})

    def step_done(self) -> None:
        """Nobody hears of it."""

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        return np.full(len(responses), float(policy.number))

    def features(self, responses: Sequence[Response]) -> Array:
        return np.ones((len(responses), 3))

    def close(self) -> None:
        (self.folder / f"closed-rank{self.rank}").write_text("")


class SteadyBackend(SummingBackend):
    """Says that it gets on."""

    def step_done(self) -> None:
        PROGRESS.advance()


def make_steady(folder: Path, rank: int, ranks: int) -> SteadyBackend:
    return SteadyBackend(rank, ranks, folder)


def make(folder: Path, rank: int, ranks: int) -> SummingBackend:
    return SummingBackend(rank, ranks, folder)


def command(number: int, *, steps: int = 3, pause_s: float = 0.0, seed: int = 7) -> FitCommand:
    rows = (PairRow("a", (1,), (2,), (3,)),)
    settings = FitSettings(steps=steps, learning_rate=max(pause_s, 1e-9))
    return FitCommand(
        number, Start(REFERENCE), Objective("reward", REFERENCE, 0.1), rows, settings, seed, f"fit-{number}"
    )
