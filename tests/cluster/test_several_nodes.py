"""The demo on several Ray nodes: two ranks under ZeRO-2, two vLLM engines, each on a node of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import launch
from pddpo_ray.config import load
from pddpo_ray.driver import run
from pddpo_ray.journal import read_journal
from tests.support.kill_points import living
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.small_demo import SMALL_DEMO
from tests.support.traces import workers_by_round

# With `make chaos`, for the time it takes.
pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.deepspeed, pytest.mark.slow, pytest.mark.chaos]


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalCluster]:
    yield from local_cluster(nodes=2, cpus=2)


def test_the_demo_spreads_over_nodes_and_every_delivery_is_verified(nodes: LocalCluster, tmp_path: Path) -> None:
    where: dict[str, set[str]] = {}

    def look(event: run.Event) -> None:
        if isinstance(event, run.PhaseChanged) and (event.event.round, event.event.phase) == (2, "sample"):
            for kind in ("rank", "rollout engine", "dual variable", "labeller", "mailbox"):
                where[kind] = {actor.node_id for actor in living(kind)}

    result = launch.run_recipe(load("text-world", [*SMALL_DEMO, "rounds=2"]), tmp_path / "demo", progress=look)
    assert result["weights_verified"]
    assert where["rank"] == where["rollout engine"] == set(nodes.nodes), "one of each on either node"
    for kind in ("dual variable", "labeller", "mailbox"):
        assert not where[kind] & set(nodes.nodes), f"the {kind} stays with the driver"
    assert len(set(workers_by_round(tmp_path / "demo")[0])) == 2
    with read_journal(tmp_path / "demo" / "journal.sqlite", "demo") as journal:
        deliveries = journal.deliveries()
        assert [step.round for step in journal.dual_steps()] == [1, 2]
    assert {entry.delivery.engine for entry in deliveries} == {"vllm-0", "vllm-1"}
    assert all(entry.verified for entry in deliveries)
