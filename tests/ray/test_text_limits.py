"""Three limits on the text world through Ray's trainer and engine: the numbers of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import launch
from pddpo_ray.config import load
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.loop.run import run_recipe
from tests.ray_session import session
from tests.traces import trace, workers_by_round

pytestmark = pytest.mark.ray

SMALL = (
    "rounds=2", "rollout={engine: transformers, max_tokens: 40, candidates: 4, canaries: 2}", "feedback.responses=16",
    "offline.pairs=48", "offline.compare_rounds=0", "explore={calibration: 48, rank: 8, prompts: 4, picks: 2}",
    "trainer.threads=1", *[f"trainer.{stage}.steps=3" for stage in ("reward", "cost", "first_reward", "first_cost")],
    "report={html: false, tensorboard: false}",
)  # fmt: skip


@pytest.fixture(scope="module")
def ray_running() -> Iterator[None]:
    yield from session()


def measured(run: Path) -> list[tuple[int, str, object]]:
    """Every number that a limit's source gave, and what each step did to the multipliers."""
    with open_folder(run) as journal:
        wanted = [*journal.phases(like="measure-%"), *journal.phases(like="joint"), *journal.phases(like="reward-%")]
        return [(one.round, one.phase, one.payload) for one in wanted]


def test_limits_on_texts_through_ray_equal_those_in_one_process(ray_running: None, tmp_path: Path) -> None:
    """Labels, multipliers and the hashes of all weights, with a reward that a rule computes beside the three limits."""
    small = [*SMALL, "reward={rule: words, bounds: [0, 20]}"]
    here = run_recipe(load("text-world-limits", small), tmp_path / "here" / "run")
    on_ray = load("text-world-limits", [*small, "cluster.mode=ray", "cluster.cpus=4"])
    there = launch.run_recipe(on_ray, tmp_path / "there" / "run")
    assert set(here["limits"]) == {"harmful", "length", "rude"}
    assert there["limits"] == here["limits"]
    assert not set(workers_by_round(tmp_path / "there" / "run")) & set(workers_by_round(tmp_path / "here" / "run"))
    phases = [phase for _, phase, _ in measured(tmp_path / "here" / "run")]
    assert {"measure-offline", "measure-pairs", "measure-answers", "joint", "reward-pairs"} <= set(phases)
    assert measured(tmp_path / "there" / "run") == measured(tmp_path / "here" / "run")
    assert trace(tmp_path / "there" / "run") == trace(tmp_path / "here" / "run")
