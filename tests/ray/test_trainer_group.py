"""The worker group that lives for the whole run: same processes, lost ranks, errors, deadlines."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from actors.trainer import TrainerGroup, TrainerSettings
from pddpo_ray.errors import RunError
from pddpo_ray.parts import Array, FitCommand, FitResult, FitSettings, Start
from pddpo_ray.records import Objective, PairRow, PolicyVersion, Response
from tests.ray_session import session

pytestmark = pytest.mark.ray

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
            time.sleep(command.settings.learning_rate)
        version = PolicyVersion(command.sequence, command.result, f"{float(total):.17g}", command.result)
        return FitResult(version, {"fit/steps": float(command.settings.steps)})

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        return np.full(len(responses), float(policy.number))

    def features(self, responses: Sequence[Response]) -> Array:
        return np.ones((len(responses), 3))

    def close(self) -> None:
        (self.folder / f"closed-rank{self.rank}").write_text("")


def make(folder: Path, rank: int, ranks: int) -> SummingBackend:
    return SummingBackend(rank, ranks, folder)


def command(number: int, *, steps: int = 3, pause_s: float = 0.0, seed: int = 7) -> FitCommand:
    rows = (PairRow("a", (1,), (2,), (3,)),)
    settings = FitSettings(steps=steps, learning_rate=pause_s)
    return FitCommand(
        number, Start(REFERENCE), Objective("reward", REFERENCE, 0.1), rows, settings, seed, f"fit-{number}"
    )


@pytest.fixture(scope="module")
def ray_running() -> Iterator[None]:
    yield from session()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("group")


@pytest.fixture(scope="module")
def group(ray_running: None, folder: Path) -> Iterator[TrainerGroup]:
    group = TrainerGroup(
        partial(make, folder), name="test", storage=folder / "ray", settings=TrainerSettings(workers=2, deadline_s=120)
    )
    group.wait_ready()
    yield group
    group.close()
    assert (folder / "closed-rank1").exists()


def test_every_fit_runs_in_the_same_processes_and_repeats_exactly(group: TrainerGroup) -> None:
    first, second = group.execute(command(1)), group.execute(command(2))
    assert first.workers == second.workers
    assert len(set(first.workers)) == 2
    assert os.getpid() not in first.workers
    assert first.version.sha256 == second.version.sha256
    expected = sum(np.random.default_rng([7, rank]).normal(size=3).sum() for rank in range(2))
    assert float(first.version.sha256) == pytest.approx(expected, rel=1e-12)


def test_scores_and_features_come_back_whole(group: TrainerGroup) -> None:
    assert group.log_probs(PolicyVersion(4, "p", "", ""), []).shape == (0,)
    assert group.features([]).shape == (0, 3)


def test_an_expected_error_is_an_answer_and_the_group_goes_on(group: TrainerGroup) -> None:
    before = group.workers()
    with pytest.raises(RunError, match="trainer, fit fit-3: and that is that"):
        group.execute(command(3, seed=-1))
    assert group.execute(command(4)).workers == tuple(worker.pid for worker in before)


def test_a_rank_killed_in_mid_fit_comes_back_and_the_result_is_the_same(group: TrainerGroup, folder: Path) -> None:
    unbroken = group.execute(command(5, steps=12))
    victim = group.workers()[1].pid

    def kill() -> None:
        while not (folder / "fit-6-rank1-step4").exists():
            time.sleep(0.02)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    broken = group.execute(command(6, steps=12, pause_s=0.1))
    killer.join()
    assert broken.version.sha256 == unbroken.version.sha256
    assert victim not in broken.workers
    assert group.restarts() >= 1


def test_a_fit_that_takes_too_long_names_the_ranks_it_waits_for(ray_running: None, folder: Path) -> None:
    group = TrainerGroup(
        partial(make, folder), name="slow", storage=folder / "ray", settings=TrainerSettings(workers=1, deadline_s=1)
    )
    try:
        group.wait_ready()
        with pytest.raises(
            RunError, match=r"fit fit-1 took longer than 1 s: still waiting for rank 0 \(process \d+ on"
        ):
            group.execute(command(1, steps=80, pause_s=0.1))
    finally:
        group.close()


def test_more_workers_than_the_cluster_has_fail_by_the_deadline(ray_running: None, folder: Path) -> None:
    settings = TrainerSettings(workers=64, start_deadline_s=6)
    group = TrainerGroup(partial(make, folder), name="big", storage=folder / "ray", settings=settings)
    with pytest.raises(RunError, match=r"did not start within 6 s: ranks \[\] of 64"):
        group.execute(command(1))
    group.close(patience_s=0.1)
