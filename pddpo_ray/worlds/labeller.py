"""Labels drawn from a world's truth (parts.Labeller), the same for every kind of world."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import expit

from pddpo_ray.records import LabelledPair, Pair, Response, SafetyLabels, Verdict

Score = Callable[[Response], float]


class WorldLabeller:
    """Safe or unsafe with P(unsafe) = sigmoid(cost); preferences by Bradley-Terry on reward and on cost.

    Every draw is seeded by (seed, id of the item), so that neither order nor batch changes a label.
    """

    def __init__(self, reward: Score, cost: Score) -> None:
        self._reward, self._cost = reward, cost

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        """`labels_each` independent labels of every answer."""
        verdicts = []
        for item in items:
            unsafe = _generator(seed, "safety", item.id).random(labels_each) < expit(self._cost(item))
            verdicts.append(SafetyLabels(item, tuple(Verdict.UNSAFE if bit else Verdict.SAFE for bit in unsafe)))
        return verdicts

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        """P(first is better) = sigmoid(reward difference), P(first is costlier) = sigmoid(cost difference)."""
        labelled = []
        for pair in pairs:
            draws = _generator(seed, "compare", pair.id).random(2)
            better = draws[0] < expit(self._reward(pair.first) - self._reward(pair.second))
            costlier = draws[1] < expit(self._cost(pair.first) - self._cost(pair.second))
            labelled.append(LabelledPair(pair, _side(better), _side(costlier)))
        return labelled


def _side(first: bool) -> Verdict:
    return Verdict.FIRST if first else Verdict.SECOND


def _generator(seed: int, purpose: str, name: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{purpose}\n{name}".encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])
