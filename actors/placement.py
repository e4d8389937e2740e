"""What a run reserves on a cluster, and what is missing if it cannot.

The parts' needs are a pure function of the recipe (`pddpo_ray.plan.resources.bundles`). They are compared with what the
cluster has before anything is started, so an impossible run ends within seconds instead of staying pending.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.plan.resources import Bundle

logger = logging.getLogger(__name__)

Resources = Mapping[str, float]
SAY_EVERY_S = 60.0
"""How often a run that waits for nodes says so."""


def total(bundles: Sequence[Bundle]) -> dict[str, float]:
    """CPUs and GPUs of all processes together."""
    # Shares of a GPU add up to whole ones, their floats only nearly.
    return {
        "CPU": round(sum(bundle.count * bundle.cpus for bundle in bundles), 4),
        "GPU": round(sum(bundle.count * bundle.gpus for bundle in bundles), 4),
    }


def shortfall(bundles: Sequence[Bundle], have: Resources) -> str | None:
    """What is needed, there and short, per resource, in words; None if it suffices."""
    parts = " + ".join(f"{bundle.part} {bundle.count} x {_units(bundle)}" for bundle in bundles)
    short = [
        f"need {need:g} {name}s, have {have.get(name, 0.0):g}, short {need - have.get(name, 0.0):g}"
        for name, need in total(bundles).items()
        if need > have.get(name, 0.0)
    ]
    return f"{'; '.join(short)} ({parts})" if short else None


def misfit(bundles: Sequence[Bundle], nodes: Sequence[Resources]) -> str | None:
    """Says which part's processes cannot all be placed although the totals suffice: a process never spans nodes.

    Each part alone is counted against the whole nodes, so what is refused here could never start.
    """
    for bundle in bundles:
        places = sum(_places(bundle, node) for node in nodes)
        if places < bundle.count:
            biggest = max((node.get("GPU" if bundle.gpus else "CPU", 0.0) for node in nodes), default=0.0)
            unit = "GPUs" if bundle.gpus else "CPUs"
            return (
                f"need {bundle.count} places of {_units(bundle)} for {bundle.part}, have {places}, short"
                f" {bundle.count - places}: a process does not span nodes, and the biggest of {len(nodes)} nodes has"
                f" {biggest:g} {unit}"
            )
    return None


def lack(bundles: Sequence[Bundle]) -> str | None:
    """What the present cluster lacks for the run, or None."""
    return shortfall(bundles, ray.cluster_resources()) or misfit(bundles, _nodes())


def check_cluster(bundles: Sequence[Bundle], *, patience_s: float = 5.0, autoscaler_s: float = 0.0) -> None:
    """Raise UserError if the cluster can never hold the run. Nodes that are just joining get `patience_s`.

    autoscaler_s: above 0, Ray's autoscaler is asked for the missing nodes and has this number of seconds to bring them.
    """
    if autoscaler_s and (shortage := lack(bundles)):
        _wait_for_autoscaler(bundles, shortage, autoscaler_s)
        return
    deadline = time.monotonic() + patience_s
    while shortage := lack(bundles):
        if time.monotonic() > deadline:
            raise UserError(
                f"the cluster is too small: {shortage}. Add nodes, lower trainer.workers or rollout.engines, or give an"
                " autoscaler time (cluster.autoscaler_s)"
            )
        time.sleep(0.5)


def _wait_for_autoscaler(bundles: Sequence[Bundle], short: str, wait_s: float) -> None:
    """The request is taken back at the end: what a run reserves then keeps its nodes, and a refused run keeps none."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[_resources(bundle) for bundle in bundles for _ in range(bundle.count)])
    started = logged_at = time.monotonic()
    logger.warning("asked the autoscaler for nodes and wait up to %.0f s: %s", wait_s, short)
    try:
        while shortage := lack(bundles):
            now = time.monotonic()
            if now - started > wait_s:
                raise UserError(
                    f"the autoscaler brought too few nodes within {wait_s:.0f} s: {shortage}. Raise its most nodes or"
                    " cluster.autoscaler_s, or lower trainer.workers or rollout.engines"
                )
            if now - logged_at > SAY_EVERY_S:
                logged_at = now
                logger.warning("wait for the autoscaler since %.0f s: %s", now - started, shortage)
            time.sleep(0.5)
    finally:
        request_resources(bundles=[])


def _resources(bundle: Bundle) -> dict[str, float]:
    """What one process of a part reserves, as Ray writes it."""
    return {"CPU": bundle.cpus, **({"GPU": bundle.gpus} if bundle.gpus else {})}


def beside_driver() -> Any:
    """Scheduling of parts that reserve nothing: on the driver's node, so a lost worker takes none of them along."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def reserve(bundle: Bundle, *, strategy: str, deadline_s: float) -> Any:
    """A placement group, one bundle per process of a part. Raises RunError that says what is short after the deadline.

    strategy: `pack` or `spread`.
    """
    name = f"{bundle.part} {uuid.uuid4().hex}"
    group = ray.util.placement_group([_resources(bundle)] * bundle.count, strategy=strategy.upper(), name=name)
    try:
        ray.get(group.ready(), timeout=deadline_s)
    except ray.exceptions.GetTimeoutError:
        ray.util.remove_placement_group(group)
        short = shortfall([bundle], ray.available_resources()) or "no single node has room for a whole process"
        raise RunError(
            f"waited {deadline_s:.0f} s for {bundle.part}: {short}. Another run may hold the cluster (`ray status`)"
        ) from None
    return group


def release_places_of_lost_groups() -> None:
    """Releases everything that Ray Train reserved for this job, whose only group is gone.

    Ray Train leaves that to an actor on some node; if that node is lost as well, nothing would release it.
    """
    for group in _reserved_by_ray_train():
        ray.util.remove_placement_group(group)


def release_superseded_places() -> None:
    """Releases what Ray Train still holds for a group that it has given up, once the next one waits for places.

    A node that is lost while a group starts makes Ray Train forget the places of that group. It asks for places one
    group at a time, so a group that has them while another group of the same job waits is such a forgotten one.
    """
    reserved = _reserved_by_ray_train()
    if "PENDING" in reserved.values():
        for group, state in reserved.items():
            if state == "CREATED":
                ray.util.remove_placement_group(group)


def _reserved_by_ray_train() -> dict[Any, str]:
    """Placement groups of this job that have no name, with their states; `reserve` names ours."""
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup, placement_group_table

    job = ray.get_runtime_context().get_job_id()
    return {
        PlacementGroup(PlacementGroupID(bytes.fromhex(id_))): entry["state"]
        for id_, entry in placement_group_table().items()
        if id_.endswith(job) and not entry["name"] and entry["state"] != "REMOVED"
    }


def _units(bundle: Bundle) -> str:
    return f"{bundle.cpus:g} CPU" + (f" {bundle.gpus:g} GPU" if bundle.gpus else "")


def _places(bundle: Bundle, node: Resources) -> int:
    """How many of a part's processes fit on an empty node. Fractions of GPUs are not put together from several."""
    by_cpu = int(node.get("CPU", 0.0) // bundle.cpus) if bundle.cpus else bundle.count
    if not bundle.gpus:
        return by_cpu
    gpus = int(node.get("GPU", 0.0))
    by_gpu = gpus * int(1 / bundle.gpus) if bundle.gpus < 1 else gpus // int(bundle.gpus)
    return min(by_cpu, by_gpu)


def _nodes() -> list[Resources]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
