"""Several limits through Ray actors: the same multipliers, labels and versions as in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import launch
from pddpo_ray.config import load
from pddpo_ray.loop.run import run_recipe
from tests.ray_session import session
from tests.traces import trace

pytestmark = pytest.mark.ray

SMALL = ["rounds=2", "feedback.responses=24", "feedback.labels_each=8", "explore.prompts=8", "offline.pairs=80"]


@pytest.fixture(scope="module")
def ray_running() -> Iterator[None]:
    yield from session()


def test_two_limits_on_ray_equal_those_in_one_process(ray_running: None, tmp_path: Path) -> None:
    here = run_recipe(load("tabular-two-limits", SMALL), tmp_path / "here" / "run")
    on_ray = load("tabular-two-limits", [*SMALL, "cluster.mode=ray", "cluster.cpus=4"])
    there = launch.run_recipe(on_ray, tmp_path / "there" / "run")
    assert there["constraints"] == here["constraints"]
    assert trace(tmp_path / "there" / "run") == trace(tmp_path / "here" / "run")


def test_stated_limits_on_ray_equal_those_in_one_process(ray_running: None, tmp_path: Path) -> None:
    here = run_recipe(load("tabular-limits", SMALL), tmp_path / "here" / "run")
    on_ray = load("tabular-limits", [*SMALL, "cluster.mode=ray", "cluster.cpus=4"])
    there = launch.run_recipe(on_ray, tmp_path / "there" / "run")
    assert there["limits"] == here["limits"]
    assert trace(tmp_path / "there" / "run") == trace(tmp_path / "here" / "run")
