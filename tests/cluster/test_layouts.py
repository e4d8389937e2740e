"""A run in the time-shared layout computes the same, tells Prometheus about itself, and asks its node for secrets."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from actors import launch
from pddpo_ray.config import load
from pddpo_ray.driver import run
from pddpo_ray.errors import UserError
from tests.support.ray_session import session
from tests.support.traces import trace

# With `make chaos`, for the time it takes.
pytestmark = [pytest.mark.ray, pytest.mark.chaos]

RECIPE = ("tabular", ["rounds=2", "seed=6", "offline.compare_rounds=0", "dual.rho=1.5"])
SHARED = ["cluster.mode=ray", "cluster.cpus=4", "cluster.layout=time-shared"]


@pytest.fixture(scope="module")
def ray_running() -> Iterator[None]:
    yield from session()


def test_taking_turns_changes_no_number_and_metrics_are_there_for_prometheus(ray_running: None, tmp_path: Path) -> None:
    recipe, overrides = RECIPE
    run.run_recipe(load(*RECIPE), tmp_path / "alone")
    launch.run_recipe(load(recipe, [*overrides, *SHARED]), tmp_path / "turns")
    assert trace(tmp_path / "turns") == trace(tmp_path / "alone")
    told = exported()
    assert told["ray_pddpo_round"] == 2.0
    assert told["ray_pddpo_multiplier_upper"] == 3.0
    assert told["ray_pddpo_limit"] == 0.0
    assert told["ray_pddpo_cost_low"] <= told["ray_pddpo_cost_estimate"] <= told["ray_pddpo_cost_high"]


def exported() -> dict[str, float]:
    """Our metrics of the run `turns`, as a scrape of the node sees them."""
    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        text = urllib.request.urlopen(address, timeout=10).read().decode()
        found = re.findall(r'(?m)^(ray_pddpo_\w+)\{[^}]*run="turns"[^}]*\} (\S+)$', text)
        values = {name: float(value) for name, value in found}
        if values.get("ray_pddpo_round") == 2.0:
            return values
        time.sleep(2)
    raise AssertionError("the run's metrics did not appear")


def test_a_secret_that_the_node_lacks_is_named_before_anything_starts(
    ray_running: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDDPO_SECRETS", "NOWHERE_TO_BE_FOUND")
    recipe, overrides = RECIPE
    with pytest.raises(UserError, match=r"node \S+: secret NOWHERE_TO_BE_FOUND is neither in the environment nor in"):
        launch.run_recipe(load(recipe, [*overrides, *SHARED]), tmp_path / "secret")
