"""Several nodes: a node that goes away in mid-fit costs time and no number."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from actors.placement import shortfall
from actors.trainer import TrainerGroup, TrainerSettings
from pddpo_ray.plan import Bundle
from tests.summing_backend import command, make

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs and three nodes with one each, all on this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    before = os.environ.get("RAY_API_SERVER_ADDRESS")
    os.environ["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{port}"
    os.environ.setdefault("RAY_worker_niceness", "0")
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": True, "dashboard_port": port}
    )
    ray.init(address=cluster.address, namespace="pddpo-nodes", log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.pop("RAY_API_SERVER_ADDRESS")
        if before is not None:
            os.environ["RAY_API_SERVER_ADDRESS"] = before


def test_a_node_removed_in_mid_fit_is_replaced_by_another_one(cluster: Any, tmp_path: Path) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    cluster.wait_for_nodes()
    assert shortfall([Bundle("trainer", 4, 1.0)], ray.cluster_resources()) == (
        "need 4 CPUs, have 3, short 1 (trainer 4 x 1 CPU)"
    )
    settings = TrainerSettings(workers=2, placement="SPREAD", deadline_s=240)
    group = TrainerGroup(partial(make, tmp_path), name="nodes", storage=tmp_path / "ray", settings=settings)
    unbroken = group.execute(command(1, steps=12))
    host = node_of(group.workers()[1].pid)
    lost = next(node for node in nodes if node.node_id == host)

    def remove() -> None:
        while not (tmp_path / "fit-2-rank1-step4").exists():
            time.sleep(0.05)
        cluster.remove_node(lost, allow_graceful=False)

    remover = threading.Thread(target=remove)
    remover.start()
    broken = group.execute(command(2, steps=12, pause_s=0.2))
    remover.join()
    assert broken.version.sha256 == unbroken.version.sha256
    assert all(node_of(worker.pid) != host for worker in group.workers())
    group.close()


def node_of(pid: int) -> str:
    """Node of a live actor's process."""
    from ray.util.state import list_actors

    actors = list_actors(filters=[("state", "=", "ALIVE"), ("pid", "=", pid)], detail=True)
    return str(actors[0].node_id)
