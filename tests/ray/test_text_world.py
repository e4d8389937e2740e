"""The text world on Ray with real vLLM engines: verified deliveries, one group for all rounds, and lost processes.

The engines are those of its own runs: what is shown is how a run starts, checks and replaces them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from actors import launch
from pddpo_ray.config import Config, load
from pddpo_ray.driver import run
from pddpo_ray.journal import read_journal
from tests.support.ray_session import living_actors
from tests.support.traces import trace, workers_by_round

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

SMALL = [
    *["rounds=2", "seed=5", "offline.compare_rounds=0", "offline.pairs=200", "cluster.mode=ray"],
    *["trainer.fit.steps=8", "trainer.stages.first_reward.steps=20"],
    *["feedback.responses=32", "limits.cost.labels_each=8", "explore.calibration=192"],
    *["explore.prompts=8", "explore.picks=2", "trainer.workers=2", "trainer.threads=1"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module")
def unbroken(ray_running: None, folder: Path) -> dict[str, Any]:
    result = launch.run_recipe(small(), folder / "unbroken")
    assert result["weights_verified"]
    return trace(folder / "unbroken")


def small() -> Config:
    """Two rounds that say nothing about quality; the reference is the recipe's own, from the cache if it is there."""
    return load("text-world", SMALL)


def test_every_version_was_verified_in_the_engine_before_it_was_sampled(unbroken: dict[str, Any], folder: Path) -> None:
    with read_journal(folder / "unbroken" / "journal.sqlite", "unbroken") as journal:
        deliveries = journal.deliveries()
        samples = {response.policy_version for number in range(3) for response in journal.samples(number)}
    assert samples <= {entry.delivery.version for entry in deliveries}
    assert all(entry.verified and (entry.canary_difference or 0.0) < 1e-5 for entry in deliveries)


def test_all_fits_were_made_by_the_same_two_processes(unbroken: dict[str, Any], folder: Path) -> None:
    workers = workers_by_round(folder / "unbroken")
    assert len(workers) == 4
    assert len(set(workers)) == 1
    assert len(set(workers[0])) == 2


@pytest.mark.full
def test_killing_a_rank_in_mid_fit_and_vllm_before_sampling_changes_no_number(
    unbroken: dict[str, Any], folder: Path
) -> None:
    """kill -9 of a rank while it fits, and of the engine's process before the cost estimate's sample."""
    killed = []

    def wound(event: run.Event) -> None:
        if not isinstance(event, run.PhaseChanged) or event.event.what != "phase-started":
            return
        victim = {(2, "fit-cost"): "RayTrainWorker", (2, "sample"): "RolloutActor"}.get(
            (event.event.round, event.event.phase)
        )
        if victim:
            os.kill(living_actors(victim)[-1].pid, signal.SIGKILL)
            killed.append(victim)

    result = launch.run_recipe(small(), folder / "wounded", progress=wound)
    assert killed == ["RayTrainWorker", "RolloutActor"]
    assert trace(folder / "wounded") == unbroken
    assert result["weights_verified"]
    workers = workers_by_round(folder / "wounded")
    assert workers[0] == workers[2]
    assert workers[3] != workers[2]
