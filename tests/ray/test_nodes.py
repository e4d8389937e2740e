"""Several nodes: a node that goes away in mid-fit costs time and no number.

The cluster is this file's own: it has three nodes, one of which is removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import ray

from actors.placement import shortfall
from actors.trainer_group import TrainerGroup, TrainerSettings
from pddpo_ray.plan.resources import Bundle
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.ray_session import living_actors
from tests.support.summing_backend import command, make

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.full]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    yield from local_cluster(nodes=3, cpus=1)


def test_a_node_removed_in_mid_fit_is_replaced_by_another_one(cluster: LocalCluster, tmp_path: Path) -> None:
    assert shortfall([Bundle("trainer", 4, 1.0)], ray.cluster_resources()) == (
        "need 4 CPUs, have 3, short 1 (trainer 4 x 1 CPU)"
    )
    settings = TrainerSettings(workers=2, placement="SPREAD", deadline_s=240)
    group = TrainerGroup(partial(make, tmp_path), name="nodes", storage=tmp_path / "ray", settings=settings)
    unbroken = group.execute(command(1, steps=12))
    lost = node_of(group.workers()[1].pid)

    def remove() -> None:
        while not (tmp_path / "fit-2-rank1-step4").exists():
            time.sleep(0.05)
        cluster.remove(lost)

    remover = threading.Thread(target=remove)
    remover.start()
    broken = group.execute(command(2, steps=12, pause_s=0.2))
    remover.join()
    assert broken.version.sha256 == unbroken.version.sha256
    assert all(node_of(worker.pid) != lost for worker in group.workers())
    group.close()


def node_of(pid: int) -> str:
    """Node of a live actor's process."""
    return next(actor.node_id for actor in living_actors() if actor.pid == pid)
