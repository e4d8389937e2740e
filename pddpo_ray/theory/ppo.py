"""What one update of PPO-Lagrangian is told and returns (docs/methods.md); `training/ppo.py` has its mathematics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pddpo_ray.errors import RunError
from pddpo_ray.records import PolicyVersion

if TYPE_CHECKING:
    from pddpo_ray.config import PpoConfig

Place = tuple[str, str]
"""(path in the artifact store, sha256)"""


@dataclass(frozen=True)
class Critics:
    """Where the weights of both critics are stored."""

    reward: Place
    cost: Place


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer of the policy that is updated, with its scores."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    reward: float
    cost: float


@dataclass(frozen=True)
class PpoCommand:
    """A whole update: epochs over fresh answers of `start`. Executing it twice gives the same version.

    `critics` are those after the last update, or the reward and cost model before the first; None: new ones.
    """

    sequence: int
    start: PolicyVersion
    answers: tuple[ScoredAnswer, ...]
    multiplier: float
    critics: Critics | None
    settings: PpoConfig
    seed: int
    result: str


@dataclass(frozen=True)
class PpoResult:
    """The stored policy, the stored critics, and what the update says about itself (`ppo/...`)."""

    version: PolicyVersion
    critics: Critics
    metrics: Mapping[str, float] = field(default_factory=dict)
    workers: tuple[int, ...] = ()


@runtime_checkable
class PolicyGradient(Protocol):
    """A trainer backend that can also follow a policy gradient."""

    def reinforce(self, command: PpoCommand) -> PpoResult: ...


def reinforce(backend: object, command: PpoCommand) -> PpoResult:
    """One update by the backend. RunError where it cannot follow a policy gradient."""
    if not isinstance(backend, PolicyGradient):
        raise RunError("this trainer cannot follow a policy gradient: use trainer.engine=torch")
    return backend.reinforce(command)
