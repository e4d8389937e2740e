"""Whole runs on Ray: the same numbers as in one process, after lost processes too, and as a submitted job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from actors import launch
from pddpo_ray.config import load
from pddpo_ray.driver import run
from pddpo_ray.errors import PddpoError, UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.parts.dual_step import Estimates
from pddpo_ray.records import CostEstimate
from tests.support.ray_session import living_actors
from tests.support.traces import phases_done, trace

pytestmark = pytest.mark.ray

RECIPE = ("tabular", ["rounds=3", "seed=3", "offline.compare_rounds=0"])
ON_RAY = ["cluster.mode=ray", "cluster.cpus=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def unbroken(folder: Path) -> dict[str, Any]:
    """The same recipe in one process."""
    run.run_recipe(load(*RECIPE), folder / "local")
    return trace(folder / "local")


def test_a_cluster_that_is_too_small_is_refused_within_seconds(folder: Path, ray_running: None) -> None:
    recipe, overrides = RECIPE
    began = time.monotonic()
    with pytest.raises(UserError, match=r"cluster is too small: need 65 CPUs, have 4, short 61"):
        launch.run_recipe(load(recipe, [*overrides, *ON_RAY, "rollout.engines=64"]), folder / "small")
    assert time.monotonic() - began < 60


def test_a_part_that_ends_in_mid_run_is_replaced_and_changes_nothing(
    folder: Path, unbroken: dict[str, Any], ray_running: None
) -> None:
    """The rollout actor, the labeller and the dual variable are killed between phases of rounds 2 and 3."""
    here = folder / "wounded"
    recipe, overrides = RECIPE
    killed: list[str] = []

    def wound(event: run.Event) -> None:
        if isinstance(event, run.PhaseChanged) and event.event.what == "phase-started":
            victim = {(2, "sample"): "RolloutActor", (2, "dual"): "DualVariableActor", (3, "safety"): "FeedbackActor"}
            name = victim.get((event.event.round, event.event.phase))
            if name:
                kill_actor(name)
                killed.append(name)

    launch.run_recipe(load(recipe, [*overrides, *ON_RAY]), here, progress=wound)
    assert killed == ["RolloutActor", "DualVariableActor", "FeedbackActor"]
    assert trace(here) == unbroken


@pytest.mark.full
def test_the_dual_actor_is_asked_for_the_multiplier_of_every_fit(
    folder: Path, unbroken: dict[str, Any], ray_running: None
) -> None:
    """Before round 3 the actor is told other steps than the run's: the round's policy is fitted with what it says."""
    here = folder / "told"
    recipe, overrides = RECIPE
    said: dict[str, float] = {}

    def tell_other_steps(event: run.Event) -> None:
        if not isinstance(event, run.PhaseChanged) or event.event.what != "phase-started":
            return
        if (event.event.round, event.event.phase) == (3, "fit-reward"):
            owner = ray.get_actor("pddpo/told/dual")
            told = Estimates(1, (CostEstimate(2.0, 0.1, 8, 8),))
            ray.get(owner.restore.remote((told,)))
            said.update(ray.get(owner.multipliers.remote(3)))

    launch.run_recipe(load(recipe, [*overrides, *ON_RAY]), here, progress=tell_other_steps)
    with read_journal(here / run.JOURNAL, "told") as journal:
        fitted = {entry.round: entry.multiplier for entry in journal.versions() if entry.stage == "cost"}
    undisturbed = {number: before for number, before, _, _ in unbroken["multipliers"]}
    assert fitted[2] == undisturbed[2]
    assert fitted[3] == said["cost"] != undisturbed[3]


def kill_actor(class_name: str) -> None:
    victim = living_actors(class_name)[0]
    os.kill(victim.pid, signal.SIGKILL)
    while victim in living_actors(class_name):
        time.sleep(0.1)


def train(here: Path, *extra: str, **environment: str) -> subprocess.Popen[str]:
    recipe, overrides = RECIPE
    command = [sys.executable, "-m", "pddpo_ray", "train", recipe, *overrides, *ON_RAY, "report.html=false"]
    return subprocess.Popen(
        [*command, "--run", str(here), "--json", *extra],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_driver_killed_in_mid_round_resumes_to_the_same_trace(folder: Path, unbroken: dict[str, Any]) -> None:
    assert not ray.is_initialized() or ray.shutdown() is None
    here = folder / "killed"
    driver = train(here)
    deadline = time.monotonic() + 180
    while "fit-reward" not in phases_done(here, 2) and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    assert len(trace(here)["multipliers"]) < 3, "the driver was killed before its end"
    resumed = train(here, "--resume")
    out, err = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, err[-3000:]
    assert json.loads(out)["rounds"] == 3
    assert trace(here) == unbroken


def test_a_run_of_another_recipe_is_not_resumed(folder: Path, unbroken: dict[str, Any]) -> None:
    with pytest.raises(PddpoError):
        launch.run_recipe(load("tabular", ["rounds=5", *ON_RAY]), folder / "local", resume=True)
