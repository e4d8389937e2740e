"""Rewards and costs of any answer, as the methods with pseudo-labels need them. None of these sees a world's truth.

- `LinearScorer`: reward and cost models that are linear in features of the frozen reference, fitted on preferences and,
  for the cost's zero, on safe-or-unsafe labels (the sign-aware loss of algorithms.md C6). One-hot features and a box
  make them the box maximum likelihood of a table.
- `PolicyScorer`: what two DPO policies imply, beta log(policy/reference); the cost has no zero of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.box_mle import RIDGE
from pddpo_ray.logistic import bounded_logistic
from pddpo_ray.records import LabelledPair, PolicyVersion, Response, Verdict

Array = NDArray[np.float64]
Features = Callable[[Sequence[Response]], Array]
LogProbs = Callable[[PolicyVersion, Sequence[Response]], Array]


class Scorer(Protocol):
    """Reward and cost of answers; only differences within a prompt have a meaning unless it says otherwise."""

    def __call__(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        """-> rewards [n], costs [n]"""
        ...


@dataclass(frozen=True)
class LinearScorer:
    """Scores linear in features, clipped to their bounds. The cost's zero is the boundary of the safety labels."""

    features: Features
    reward: Array
    cost: Array
    reward_max: float
    cost_max: float

    def __call__(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        rows = self.features(responses)
        rewards = np.clip(rows @ self.reward, -self.reward_max, self.reward_max)
        return rewards, np.clip(rows @ self.cost, -self.cost_max, self.cost_max)


@dataclass(frozen=True)
class PolicyScorer:
    """Implicit scores of a helpful and a harmless policy, both fitted by DPO against the reference at beta.

    `cost_shift` is added to every cost: it puts the reference's mean cost where labels of its answers say that it is.
    """

    log_probs: LogProbs
    reference: PolicyVersion
    helpful: PolicyVersion
    harmless: PolicyVersion
    beta: float
    cost_shift: float = 0.0

    def __call__(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        reference = self.log_probs(self.reference, responses)
        rewards = self.beta * (self.log_probs(self.helpful, responses) - reference)
        costs = -self.beta * (self.log_probs(self.harmless, responses) - reference)
        return rewards, costs + self.cost_shift


def fit_reward(
    features: Features, labelled: Sequence[LabelledPair], *, bound: float | None = None, ridge: float = RIDGE
) -> Array:
    """Bradley-Terry weights of the reward: softplus(-(r(better) - r(worse))). -> [p]"""
    first, second, sign = _pairs(features, labelled, [item.helpful for item in labelled])
    return bounded_logistic(sign[:, None] * (first - second), bound=bound, ridge=ridge)


def fit_cost(
    features: Features,
    labelled: Sequence[LabelledPair],
    unsafe: Mapping[str, bool],
    *,
    bound: float | None = None,
    ridge: float = RIDGE,
) -> Array:
    """Weights of the cost: pairs, softplus(-c) of every unsafe answer, softplus(c) of every safe one. -> [p]

    `unsafe` holds one label per answer, by its id; the zero of the cost is where safe and unsafe are equally likely.
    """
    first, second, sign = _pairs(features, labelled, [item.harmful for item in labelled])
    answers = {answer.id: answer for item in labelled for answer in (item.pair.first, item.pair.second)}
    marked = [answer for name, answer in answers.items() if name in unsafe]
    bits = np.array([1.0 if unsafe[answer.id] else -1.0 for answer in marked])
    rows = sign[:, None] * (first - second)
    if marked:
        rows = np.concatenate([rows, bits[:, None] * features(marked)])
    return bounded_logistic(rows, bound=bound, ridge=ridge)


def _pairs(
    features: Features, labelled: Sequence[LabelledPair], verdicts: Sequence[Verdict]
) -> tuple[Array, Array, Array]:
    """Features of both answers of the decided pairs, and +1 where the first one won."""
    decided = [
        (item, verdict)
        for item, verdict in zip(labelled, verdicts, strict=True)
        if verdict in (Verdict.FIRST, Verdict.SECOND)
    ]
    first = features([item.pair.first for item, _ in decided])
    second = features([item.pair.second for item, _ in decided])
    return first, second, np.array([1.0 if verdict is Verdict.FIRST else -1.0 for _, verdict in decided])
