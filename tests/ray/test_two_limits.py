"""Several limits, and certificates, through Ray actors: the same numbers as in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import launch
from pddpo_ray.certificates.ledger import read_ledger
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal.identity import open_folder
from tests.support.ray_session import session
from tests.support.traces import trace

pytestmark = [pytest.mark.ray, pytest.mark.full]

SMALL = ["rounds=2", "feedback.responses=24", "explore.prompts=8", "offline.pairs=80"]


@pytest.fixture(scope="module")
def own_session() -> Iterator[None]:
    """A session of its own: where a trainer group has just failed to get its places, Ray takes those of the next."""
    yield from session()


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("tabular-two-limits", ["limits.cost.labels_each=8", "limits.privacy.labels_each=8"]),
        ("tabular-limits", ["limits.drift={kl: reference, at_most: 0.3}"]),
    ],
)
def test_several_limits_on_ray_equal_those_in_one_process(
    own_session: None, tmp_path: Path, recipe: str, more: list[str]
) -> None:
    here = run_recipe(load(recipe, [*SMALL, *more]), tmp_path / "here" / "run")
    on_ray = load(recipe, [*SMALL, *more, "cluster.mode=ray", "cluster.cpus=4"])
    there = launch.run_recipe(on_ray, tmp_path / "there" / "run")
    assert there["limits"] == here["limits"]
    assert trace(tmp_path / "there" / "run") == trace(tmp_path / "here" / "run")


def test_a_run_on_ray_is_certified_at_its_end_and_later_in_one_process(own_session: None, tmp_path: Path) -> None:
    rate = [
        "limits.cost={rate: {world: cost}, at_most: 60 %, labels_each: 8, learned_from: comparisons}",
        "certificate={certify: end, candidates: 1, draws: 640}",
    ]
    in_one = load("tabular", [*SMALL, *rate])
    on_ray = load("tabular", [*SMALL, *rate, "cluster.mode=ray", "cluster.cpus=4", "rollout.engines=2"])
    here, there = tmp_path / "here" / "run", tmp_path / "there" / "run"
    run_recipe(in_one, here)
    launch.run_recipe(on_ray, there)
    later = [certify(config, run, "mixture", {}, 640) for config, run in ((in_one, here), (on_ray, there))]
    assert later[0].numbers == later[1].numbers
    lines = []
    for run in (here, there):
        with open_folder(run) as journal:
            lines.append(read_ledger(journal))
    assert [(one.candidate, one.numbers, one.state) for one in lines[0]] == [
        (one.candidate, one.numbers, one.state) for one in lines[1]
    ]
    assert [one.state for one in lines[0]] == ["certified", "certified"]
