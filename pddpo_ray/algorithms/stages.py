"""What the pages share: the parts, the sizes of a round, and the two stages' objectives (algorithms.md A2, A3, A9)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pddpo_ray.controllers.dual import DualController
from pddpo_ray.controllers.exploration import ExplorationController
from pddpo_ray.controllers.feedback import FeedbackController
from pddpo_ray.controllers.preferences import Preferences
from pddpo_ray.controllers.prompts import Prompts
from pddpo_ray.controllers.rollout import RolloutController
from pddpo_ray.controllers.trainer import TrainerController
from pddpo_ray.journal import Journal
from pddpo_ray.records import CostEstimate, Objective, PolicyVersion, SafetyLabels


@dataclass(frozen=True)
class Parts:
    """Everything that a page calls. Offline methods have no explorer."""

    journal: Journal
    trainer: TrainerController
    rollout: RolloutController
    feedback: FeedbackController
    dual: DualController
    prompts: Prompts
    preferences: Preferences
    estimate_cost: Callable[[Sequence[SafetyLabels]], CostEstimate]
    explorer: ExplorationController | None = None

    @property
    def exploration(self) -> ExplorationController:
        if self.explorer is None:
            raise ValueError("this method explores; it needs an explorer")
        return self.explorer


@dataclass(frozen=True)
class Sizes:
    """K, N_ce, M_ce, the prompts per round that get compared, and beta."""

    rounds: int
    responses: int
    labels_each: int
    pair_prompts: int
    beta: float


def reward_objective(reference: PolicyVersion, beta: float, margins: Sequence[float] = ()) -> Objective:
    """Standard DPO against the reference (A2); margins are the reward bonus of the paper's mode."""
    return Objective("reward", reference, beta, margins=tuple(margins))


def lagrangian_objective(
    base: PolicyVersion, multiplier: float, beta: float, margins: Sequence[float] = ()
) -> Objective:
    """DPO against the last stage's policy at temperature beta/multiplier, the cheaper answer chosen (A3).

    At multiplier 0 the minimiser is the base itself; the trainer then takes it without a fit (A6).
    """
    temperature = beta / multiplier if multiplier > 0 else math.inf
    return Objective("cost", base, temperature, multiplier, tuple(margins))


def lagrangian_chain(parts: Parts, reward_policy: PolicyVersion, beta: float) -> PolicyVersion:
    """One cost fit per constraint, each relative to the one before; the order does not matter for exact optima (B7)."""
    policy = reward_policy
    for constraint, multiplier in parts.dual.multipliers.items():
        policy = parts.trainer.fit(
            lagrangian_objective(policy, multiplier, beta), parts.preferences.cost_of(constraint)
        )
    return policy


def estimates(parts: Parts, policy: PolicyVersion, sizes: Sizes) -> list[CostEstimate]:
    """One estimate per constraint, all from the same fresh answers of the round's policy (A5)."""
    answers = parts.rollout.sample(parts.prompts.draw(sizes.responses), policy)
    return [
        parts.estimate_cost(parts.feedback.safety(answers, sizes.labels_each, constraint))
        for constraint in parts.dual.multipliers
    ]
