"""What is read back from the journal: records of the run together with where they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pddpo_ray.contracts import Delivery
from pddpo_ray.records import CostEstimate, LabelledPair, PolicyVersion


@dataclass(frozen=True)
class VersionEntry:
    """A version with its provenance. `base` is the number of the policy its objective was relative to."""

    version: PolicyVersion
    round: int
    stage: str
    base: int | None
    multiplier: float | None
    metrics: Mapping[str, float]
    workers: tuple[int, ...]


@dataclass(frozen=True)
class PairEntry:
    """One labelled pair; round 0 holds the pairs from before the first round."""

    round: int
    labeller: str
    source: int
    labelled: LabelledPair


@dataclass(frozen=True)
class DualEntry:
    """One step of one multiplier; `multiplier_before` governed the round's policy, `multiplier_after` the next."""

    round: int
    constraint: str
    estimate: CostEstimate
    multiplier_before: float
    multiplier_after: float
    eta: float


@dataclass(frozen=True)
class DeliveryEntry:
    """One hand-over of weights to one engine; `canary_difference` is per token (None where it was not asked)."""

    round: int
    delivery: Delivery
    verified: bool
    canary_difference: float | None


@dataclass(frozen=True)
class PhaseEntry:
    """One finished phase; times in milliseconds since 1970 (UTC)."""

    round: int
    phase: str
    started_ms: int
    finished_ms: int
    payload: Any

    @property
    def seconds(self) -> float:
        return (self.finished_ms - self.started_ms) / 1000


@dataclass(frozen=True)
class RunEntry:
    """What the journal knows of a run as a whole; `home` and `sittings` as they were written by who drove it."""

    id: str
    name: str
    recipe: Any
    fixed_settings: Any
    created_ms: int
    part_of: str | None
    parent: str | None
    home: Mapping[str, Any] | None
    sittings: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class JournalEvent:
    """Told to a listener while a run goes on: `what` is round-started, phase-started, phase-finished, phase-reused or
    round-finished; `seconds` is 0 at a start."""

    what: str
    round: int
    phase: str = ""
    seconds: float = 0.0
