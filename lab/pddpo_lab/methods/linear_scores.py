"""Reward and cost models that are linear in features of the frozen reference.

Fitted on preferences and, for the cost's zero, on safe-or-unsafe labels (the sign-aware loss of docs/methods.md).
One-hot features and a box make them the box maximum likelihood of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import expit

from pddpo_lab.mle import RIDGE, bounded_logistic
from pddpo_ray.records import HARM, Array, LabelledPair, Response, Verdict

Features = Callable[[Sequence[Response]], Array]


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
    first, second, sign = _pairs(features, labelled, [item.label(HARM) for item in labelled])
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


def with_constant(features: Features) -> Features:
    """The features with a column of ones: a score linear in them has a level of its own. -> [n, q + 1]"""

    def extended(responses: Sequence[Response]) -> Array:
        rows = features(responses)
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)

    return extended


def shift_to_rate(logits: ArrayLike, rate: float, prior: ArrayLike | None = None) -> float:
    """The shift at which the mean chance of a label "unsafe" is `rate`, which is kept off 0 and 1 by 1e-4. [X, n] -> []

    `prior` weighs the rows, each of whose answers count alike.
    """
    rows, aim = np.asarray(logits, dtype=np.float64), min(max(rate, 1e-4), 1.0 - 1e-4)

    def above(shift: float) -> float:
        return float(np.average(expit(rows + shift).mean(axis=1), weights=prior)) - aim

    reach = float(np.abs(rows).max()) + 10.0  # where every chance is below 1e-4, or above 1 - 1e-4
    return float(brentq(above, -reach, reach))
