"""Scores that two DPO policies imply, beta log(policy/reference); the cost has no zero of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pddpo_ray.contracts import Scorer
from pddpo_ray.records import PolicyVersion, Response
from pddpo_ray.scoring.interface import Array

LogProbs = Callable[[PolicyVersion, Sequence[Response]], Array]


@dataclass(frozen=True)
class PolicyScorer:
    """Implicit scores of a helpful and a harmless policy, both fitted by DPO against the reference at beta."""

    log_probs: LogProbs
    reference: PolicyVersion
    helpful: PolicyVersion
    harmless: PolicyVersion
    beta: float

    def __call__(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        reference = self.log_probs(self.reference, responses)
        rewards = self.beta * (self.log_probs(self.helpful, responses) - reference)
        costs = -self.beta * (self.log_probs(self.harmless, responses) - reference)
        return rewards, costs


@dataclass(frozen=True)
class ShiftedCosts:
    """A scorer with every cost moved: it puts the reference's mean cost where labels of its answers say that it is."""

    scorer: Scorer
    shift: float

    def __call__(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        rewards, costs = self.scorer(responses)
        return rewards, costs + self.shift
