"""Where a run's parts live: in this process, or as Ray actors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pddpo_ray.config.sections.section import Strict


class InProcess(Strict):
    """Everything in this process, for notebooks and tests."""

    mode: Literal["in-process"] = "in-process"
    """Tag of this variant."""


class RayCluster(Strict):
    """Each part is a group of Ray actors."""

    mode: Literal["ray"] = "ray"
    """Tag of this variant."""
    address: str | None = None
    """A running cluster (`auto` or host:port); null: `$RAY_ADDRESS`, else a session of this machine."""
    cpus: int | None = Field(None, ge=1)
    """CPUs of a session of this machine; null: as many as it has."""
    gpu_share: float = Field(1.0, gt=0, le=1)
    """Share of a GPU that a worker or an engine reserves; 0.5: training and inference on one GPU."""
    layout: Literal["split", "time-shared"] = "split"
    """split: trainer and engines have devices of their own. time-shared: each GPU holds one trainer rank and one
    engine, and the engine sleeps while the trainer works (as many engines as workers, no tensor parallelism)."""
    placement: Literal["pack", "spread"] = "pack"
    """Reserve the parts' resources on few nodes or on many."""
    autoscaler_s: float = Field(0.0, ge=0)
    """Seconds that Ray's autoscaler has to bring the nodes that a run lacks; 0: the cluster has no autoscaler."""
    start_deadline_s: float = Field(300.0, gt=0)
    """Longest wait for resources and for the parts to come up, in seconds."""


Cluster = Annotated[InProcess | RayCluster, Field(discriminator="mode")]
