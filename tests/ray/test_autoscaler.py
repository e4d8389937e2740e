"""A run asks the autoscaler for the nodes that it lacks. The autoscaler's part, to read the request and add a node, is
played by this process; the request goes through Ray's own store.

The head is this file's own: it has no place at all, so that all that a run needs is lacking.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray
from ray.experimental.internal_kv import _internal_kv_get

from actors.placement import check_cluster, lack
from pddpo_ray.errors import UserError
from pddpo_ray.plan.resources import Bundle
from tests.support.local_cluster import LocalCluster, local_cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.full]
RUN = [Bundle("trainer", 2, 1, 1.0), Bundle("rollout", 1, 1, 2.0)]


@pytest.fixture(scope="module")
def head() -> Iterator[LocalCluster]:
    yield from local_cluster(nodes=0, cpus=0)


def requested() -> list[dict[str, Any]]:
    """What Ray's autoscaler would read now."""
    from ray.autoscaler._private.constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL

    stored = _internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL)
    entries: list[dict[str, Any]] = json.loads(stored) if stored else []
    return [entry.get("resources", entry) for entry in entries]


def test_nodes_that_do_not_come_are_named_and_the_request_is_taken_back(head: LocalCluster) -> None:
    with pytest.raises(UserError, match=r"brought too few nodes within 1 s: .*need 4 GPUs, have 0, short 4"):
        check_cluster(RUN, autoscaler_s=1.0)
    assert requested() == []


def test_a_run_waits_for_the_nodes_that_it_asked_for(head: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    assert ray.cluster_resources().get("GPU") is None
    with caplog.at_level(logging.WARNING, "actors.placement"), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(check_cluster, RUN, autoscaler_s=60.0)
        while not (seen := requested()):
            assert not waiting.done()
            time.sleep(0.1)
        head.add(cpus=3, gpus=4)  # Ray starts nodes from the main thread alone
        waiting.result(60)
    assert seen == [{"CPU": 1, "GPU": 1.0}, {"CPU": 1, "GPU": 1.0}, {"CPU": 1, "GPU": 2.0}]
    assert lack(RUN) is None
    assert requested() == []
    assert "asked the autoscaler for nodes and wait up to 60 s: need 3 CPUs" in caplog.text
