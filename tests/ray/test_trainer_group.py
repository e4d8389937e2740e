"""The worker group that lives for the whole run: same processes, lost ranks, errors, deadlines."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from actors.trainer_group import TrainerGroup, TrainerSettings
from pddpo_ray.errors import RunError
from pddpo_ray.records import PolicyVersion
from tests.support.summing_backend import command, make, make_steady

pytestmark = pytest.mark.ray


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
    with pytest.raises(RunError, match="trainer, fit fit-3: ValueError: seed -1 is negative and that is that"):
        group.execute(command(3, seed=-1))
    assert group.execute(command(4)).workers == tuple(worker.pid for worker in before)


def test_a_fit_that_was_begun_is_collected_once_and_others_wait_for_it(group: TrainerGroup, folder: Path) -> None:
    begun = command(10, steps=6, pause_s=0.2)
    group.begin(begun)
    while not (folder / "fit-10-rank0-step0").exists():
        time.sleep(0.02)
    assert group.log_probs(PolicyVersion(4, "p", "", ""), []).shape == (0,)
    last = folder / "fit-10-rank0-step5"
    assert last.exists(), "what was asked for later waited"
    made = last.stat().st_mtime_ns
    assert group.execute(begun).version.sha256 == group.execute(command(11, steps=6)).version.sha256
    assert last.stat().st_mtime_ns == made, "it ran once"
    # Another command than the one that was begun is a fit of its own, and what was begun is forgotten.
    group.begin(begun)
    assert group.execute(command(12)).version.name == "fit-12"
    assert group.execute(begun).version.name == "fit-10"


def test_an_expected_error_of_a_fit_that_was_begun_is_its_answer(group: TrainerGroup) -> None:
    group.begin(command(13, seed=-1))
    with pytest.raises(RunError, match="trainer, fit fit-13: ValueError: seed -1 is negative and that is that"):
        group.execute(command(13, seed=-1))


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


@pytest.mark.full
def test_a_fit_that_gets_on_may_take_longer_than_its_deadline(ray_running: None, folder: Path) -> None:
    settings = TrainerSettings(workers=1, deadline_s=3)
    group = TrainerGroup(partial(make_steady, folder), name="steady", storage=folder / "ray", settings=settings)
    try:
        group.wait_ready()
        group.execute(command(1, steps=80, pause_s=0.15))
    finally:
        group.close()


@pytest.mark.full
def test_a_fit_that_makes_no_progress_names_the_ranks_it_waits_for(ray_running: None, folder: Path) -> None:
    group = TrainerGroup(
        partial(make, folder), name="slow", storage=folder / "ray", settings=TrainerSettings(workers=1, deadline_s=1)
    )
    try:
        group.wait_ready()
        with pytest.raises(
            RunError, match=r"fit fit-1 made no progress for 1 s: still waiting for rank 0 \(process \d+ on"
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
