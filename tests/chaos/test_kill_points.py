"""kill -9 of every kind of process, and of whole nodes, at every phase of a round: the run ends by itself, unchanged.

Each test is one run on Ray in which something dies again and again, compared whole (multipliers, estimates, labels,
versions by content) with the run that nobody disturbed. docs/cluster.md has the table.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors import launch
from pddpo_ray.config import load
from pddpo_ray.driver import run
from pddpo_ray.errors import RunError
from pddpo_ray.journal import read_journal
from tests.support.kill_points import (
    ACTORS,
    PHASES,
    EveryKindAtEveryPhase,
    KillPoint,
    KillPoints,
    kill_actor,
    living,
    record,
)
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.postgres_server import postgres_server
from tests.support.ray_session import session
from tests.support.small_demo import SMALL_DEMO
from tests.support.traces import phases_done, trace

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7200)]

ROUNDS = 5
TABLE = ["seed=3", "offline.compare_rounds=0"]
RECIPE = ("tabular", [f"rounds={ROUNDS}", *TABLE])
ON_RAY = ["cluster.mode=ray", "cluster.cpus=4", "cluster.start_deadline_s=600.0", "trainer.max_failures=200"]
SEVERAL = ["trainer.workers=2", "rollout.engines=2", "cluster.placement=spread"]

DRIVER = [(2, "fit-reward"), (2, "sample"), (3, "dual"), (4, "compare"), (5, "preferences")]
KINDS = [*ACTORS, "node"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def unbroken(folder: Path) -> dict[str, Any]:
    run.run_recipe(load(*RECIPE), folder / "unbroken")
    return trace(folder / "unbroken")


def on_ray(*overrides: str) -> Any:
    recipe, usual = RECIPE
    return load(recipe, [*usual, *ON_RAY, *overrides])


def test_a_driver_killed_again_and_again_is_resumed_to_the_same_trace(folder: Path, unbroken: dict[str, Any]) -> None:
    here = folder / "driver"
    for index, (number, phase) in enumerate(DRIVER):
        ended = drive(here, *(["--resume"] if index else []), "--at", str(number), phase)
        assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
        assert phase not in phases_done(here, number)
    last = drive(here, "--resume")
    assert last.returncode == 0, last.stderr[-3000:]
    assert trace(here) == unbroken
    killed = {KillPoint(number, phase, "driver"): math.nan for number, phase in DRIVER}
    record("tabular world", killed, "ends, --resume goes on, same trace")


@pytest.fixture
def nodes() -> Iterator[LocalCluster]:
    yield from local_cluster(nodes=2, cpus=2)


class Reaper:
    """kill -9 on a cluster of two nodes, each of which holds a rank and an engine."""

    def __init__(self, nodes: LocalCluster) -> None:
        self._nodes = nodes

    def lives(self, kind: str) -> bool:
        return kind == "node" or bool(living(kind))

    def kill(self, kind: str) -> None:
        if kind != "node":
            return kill_actor(kind)
        # At once and with all its processes; a fresh one joins, as an autoscaler would see to.
        self._nodes.remove(self._nodes.nodes[0])
        self._nodes.add(cpus=2)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def journal(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """Where the run that is disturbed has its journal: None is the file in its folder."""
    if request.param == "sqlite":
        yield None
    else:
        with postgres_server() as url:
            yield url


def disturbed(
    recipe: str, overrides: list[str], folder: Path, nodes: LocalCluster, journal: str | None, *, work_s: float = 0.0
) -> Any:
    """A run in which something dies at every phase. -> its listener, its trace"""
    reaper = Reaper(nodes)
    where = [f"journal={journal}"] if journal else []
    config = load(recipe, [*overrides, *where])
    listener = EveryKindAtEveryPhase(KINDS, reaper.lives, reaper.kill, rounds=config.rounds, work_s=work_s)
    with listener.holding():
        launch.run_recipe(config, folder, progress=listener)
    assert (folder / "journal.sqlite").exists() is (journal is None)
    assert listener.fitting
    assert_fitted_by_others(listener.fitting, journal or str(folder / "journal.sqlite"), folder.name)
    return listener, trace(folder, journal)


def assert_fitted_by_others(killed: dict[int, int], journal: str, name: str) -> None:
    """A rank that had ended its part of a fit would stand beside the version as one of its makers."""
    with read_journal(journal, name) as entries:
        makers = {entry.round: entry.workers for entry in entries.versions() if entry.stage == "reward"}
    for number, pid in killed.items():
        assert len(makers[number]) == 2
        assert pid not in makers[number], f"rank {pid} made the reward policy of round {number} before it was killed"


def test_every_kind_of_process_and_whole_nodes_die_at_every_phase(
    nodes: LocalCluster, folder: Path, journal: str | None
) -> None:
    usual = [*TABLE, f"rounds={len(KINDS) + 3}"]
    database = "PostgreSQL" if journal else "SQLite"
    run.run_recipe(load("tabular", usual), folder / f"whole-{database}")
    listener, seen = disturbed("tabular", [*usual, *ON_RAY, *SEVERAL], folder / f"every-{database}", nodes, journal)
    assert seen == trace(folder / f"whole-{database}")
    assert listener.missing() == {}
    record(f"tabular world, {database}", listener.seconds, "goes on, same trace")


DEMO_ROUNDS = int(os.environ.get("PDDPO_KILL_ROUNDS", "4"))
"""From round 2 on something dies at each of the eleven phases; two rounds show every kind once."""
DEMO = [*SMALL_DEMO, f"rounds={DEMO_ROUNDS}", "trainer.max_failures=50", "trainer.stages.reward.steps=40"]
"""Steps enough that a rank which has computed for a moment is still in the fit."""


@pytest.fixture(scope="module")
def demo_unbroken(folder: Path) -> dict[str, Any]:
    """The demo on two nodes that nobody disturbs, once for both journals."""
    for _ in local_cluster(nodes=2, cpus=2):
        launch.run_recipe(load("text-world", DEMO), folder / "demo-whole")
    return trace(folder / "demo-whole")


def test_the_demo_with_zero_2_and_two_vllm_engines_loses_something_at_every_phase(
    demo_unbroken: dict[str, Any], nodes: LocalCluster, folder: Path, journal: str | None
) -> None:
    database = "PostgreSQL" if journal else "SQLite"
    demo = folder / f"demo-{database}"
    listener, seen = disturbed("text-world", DEMO, demo, nodes, journal, work_s=0.1)
    assert seen == demo_unbroken
    killed = {kind: {point.phase for point in listener.seconds if point.victim == kind} for kind in KINDS}
    assert len(listener.seconds) == (DEMO_ROUNDS - 1) * len(PHASES)
    assert min(len(phases) for phases in killed.values()) >= DEMO_ROUNDS - 1, killed
    record(f"demo, ZeRO-2, {database}", listener.seconds, "goes on, same trace")


def test_a_lost_head_ends_the_driver_and_a_new_cluster_resumes(folder: Path, unbroken: dict[str, Any]) -> None:
    here = folder / "head"
    driver = start(here, "cluster.mode=ray")
    deadline = time.monotonic() + 240
    while "sample" not in phases_done(here, 2) and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    heads = [p for p in psutil.Process(driver.pid).children(recursive=True) if "gcs_server" in p.name()]
    assert len(heads) == 1
    began = time.monotonic()
    heads[0].kill()
    driver.communicate(timeout=300)
    seconds = time.monotonic() - began
    assert driver.returncode != 0
    assert len(trace(here)["multipliers"]) < ROUNDS
    resumed = drive(here, "--resume")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert trace(here) == unbroken
    killed = {KillPoint(2, "safety", "head"): seconds}
    record("tabular world", killed, "driver ends, --resume goes on, same trace")


def test_a_hung_engine_ends_the_run_with_its_name_and_the_run_resumes(folder: Path, unbroken: dict[str, Any]) -> None:
    here = folder / "hung"
    point = KillPoint(2, "sample", "rollout engine")

    def hang(victim: str) -> None:
        os.kill(living(victim)[-1].pid, signal.SIGSTOP)

    listener = KillPoints([point], kill=hang)
    for _ in session():
        with pytest.raises(RunError, match=r"rollout engine tabular-0 did not finish .* within 5 s"):
            launch.run_recipe(on_ray("rollout.deadline_s=5.0"), here, progress=listener)
    for _ in session():
        launch.run_recipe(on_ray(), here, resume=True)
    assert trace(here) == unbroken
    outcome = "hangs: ends within the deadline, names the engine; --resume goes on, same trace"
    record("tabular world", {KillPoint(2, "sample", "rollout engine"): math.nan}, outcome)


def start(here: Path, *extra: str) -> subprocess.Popen[str]:
    recipe, usual = RECIPE
    command = [sys.executable, "-m", "tests.chaos.driver", str(here), recipe, *usual, *ON_RAY, *extra]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def drive(here: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    process = start(here, *extra)
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
