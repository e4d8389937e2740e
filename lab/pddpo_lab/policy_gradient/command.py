"""What one update of PPO-Lagrangian is told and returns (docs/methods.md)."""

from __future__ import annotations

from dataclasses import dataclass

from pddpo_lab.methods.settings import PpoSettings
from pddpo_ray.contracts import FitResult, TrainerBackend
from pddpo_ray.errors import RunError
from pddpo_ray.records import PolicyVersion

StoredWeights = tuple[str, str]
"""(path in the artifact store, sha256)"""


@dataclass(frozen=True)
class Critics:
    """Where the weights of both critics are stored."""

    reward: StoredWeights
    cost: StoredWeights


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer of the policy that is updated, with its scores."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    reward: float
    cost: float


@dataclass(frozen=True)
class PpoResult(FitResult):
    """The stored policy, the stored critics if there are any, and what the update says about itself (`ppo/...`)."""

    critics: Critics | None = None


@dataclass(frozen=True)
class PpoCommand:
    """A whole update: epochs over fresh answers of `start`. Satisfies contracts.Update.

    `critics` are those after the last update, or the reward and cost model before the first; None: new ones.
    With `group`, that number of answers of a prompt follow one another, and there is no critic at all.
    """

    sequence: int
    start: PolicyVersion
    answers: tuple[ScoredAnswer, ...]
    multiplier: float
    critics: Critics | None
    settings: PpoSettings
    seed: int
    result: str
    group: int | None = None

    def run(self, backend: TrainerBackend) -> PpoResult:
        """The update, in the process that holds the model. Raises RunError where it cannot be."""
        # Imported here: the theory's methods need no torch.
        from pddpo_lab.policy_gradient.networks import update_network
        from pddpo_lab.policy_gradient.tables import update_table
        from pddpo_lab.worlds.tabular.parts import TabularTrainer
        from pddpo_ray.training.local import LocalTrainer

        if isinstance(backend, LocalTrainer):
            return update_network(self, backend)
        if isinstance(backend, TabularTrainer):
            return update_table(self, backend)
        raise RunError("this trainer cannot follow a policy gradient: use trainer.engine=torch")
