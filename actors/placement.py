"""What a run reserves on a cluster, and what is missing if it cannot.

The parts' needs are a pure function of the recipe (`pddpo_ray.plan.bundles`). They are compared with what the cluster
has before anything is started, so an impossible run ends within seconds instead of pending for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.plan import Bundle

Resources = Mapping[str, float]


def total(bundles: Sequence[Bundle]) -> dict[str, float]:
    """CPUs and GPUs of all processes together."""
    return {
        "CPU": sum(bundle.count * bundle.cpus for bundle in bundles),
        "GPU": sum(bundle.count * bundle.gpus for bundle in bundles),
    }


def shortfall(bundles: Sequence[Bundle], have: Resources) -> str | None:
    """Says what is needed, what is there and what is short, per resource; None if it suffices."""
    parts = " + ".join(f"{bundle.part} {bundle.count} x {_units(bundle)}" for bundle in bundles)
    short = [
        f"need {need:g} {name}s, have {have.get(name, 0.0):g}, short {need - have.get(name, 0.0):g}"
        for name, need in total(bundles).items()
        if need > have.get(name, 0.0)
    ]
    return f"{'; '.join(short)} ({parts})" if short else None


def check_cluster(bundles: Sequence[Bundle], *, patience_s: float = 5.0) -> None:
    """Raise UserError if the cluster can never hold the run. Nodes that are just joining get `patience_s`."""
    deadline = time.monotonic() + patience_s
    while short := shortfall(bundles, ray.cluster_resources()):
        if time.monotonic() > deadline:
            raise UserError(
                f"the cluster is too small: {short}. Add nodes, or lower trainer.workers or rollout.engines"
            )
        time.sleep(0.5)


def reserve(bundle: Bundle, *, strategy: str, deadline_s: float) -> Any:
    """A placement group, one bundle per process of a part. Raises RunError that says what is short after the deadline.

    strategy: `pack` or `spread`.
    """
    resources = {"CPU": bundle.cpus, **({"GPU": bundle.gpus} if bundle.gpus else {})}
    group = ray.util.placement_group([resources] * bundle.count, strategy=strategy.upper())
    try:
        ray.get(group.ready(), timeout=deadline_s)
    except ray.exceptions.GetTimeoutError:
        ray.util.remove_placement_group(group)
        short = shortfall([bundle], ray.available_resources()) or "no single node has room for a whole process"
        raise RunError(
            f"waited {deadline_s:.0f} s for {bundle.part}: {short}. Another run may hold the cluster (`ray status`)"
        ) from None
    return group


def _units(bundle: Bundle) -> str:
    return f"{bundle.cpus:g} CPU" + (f" {bundle.gpus:g} GPU" if bundle.gpus else "")
