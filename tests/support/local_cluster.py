"""Several Ray nodes on this machine, with a head that has no CPUs, connected to from this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import ray


class LocalCluster:
    """Nodes that can be taken away without warning and added again."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes: dict[str, Any] = {}

    def add(self, *, cpus: int, gpus: int = 0) -> str:
        """Start a node and wait until it has joined; its GPUs are declared, not there. -> its id"""
        node = self._cluster.add_node(num_cpus=cpus, num_gpus=gpus)
        self._cluster.wait_for_nodes()
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def remove(self, node_id: str) -> None:
        """kill -9 of everything that runs on the node."""
        self._cluster.remove_node(self._nodes.pop(node_id), allow_graceful=False)

    @property
    def nodes(self) -> list[str]:
        return list(self._nodes)


def local_cluster(*, nodes: int, cpus: int, gpus: int = 0) -> Iterator[LocalCluster]:
    """For a fixture: a head and `nodes` nodes of `cpus` CPUs and `gpus` GPUs each. Both are places, not devices."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    cluster = _started_head()
    try:
        ray.init(address=cluster.address, namespace="pddpo-nodes", log_to_driver=False)
        local = LocalCluster(cluster)
        for _ in range(nodes):
            local.add(cpus=cpus, gpus=gpus)
        yield local
    finally:
        ray.shutdown()
        cluster.shutdown()


def _started_head() -> Any:
    """Ray gives a node half a minute, too little on a busy machine now and then."""
    from ray.cluster_utils import Cluster

    arguments = {"num_cpus": 0, "include_dashboard": False}
    try:
        return Cluster(initialize_head=True, head_node_args=arguments)
    except Exception:
        ray.shutdown()
        return Cluster(initialize_head=True, head_node_args=arguments)
