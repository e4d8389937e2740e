"""Labels drawn from a world's truth (contracts.Labeller), the same for every kind of world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scipy.special import expit

from pddpo_ray.records import HARM, LabelledPair, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.theory.seeds import generator_of

Score = Callable[[Response], float]


class WorldLabeller:
    """Safe or unsafe with P(unsafe) = sigmoid(cost); preferences by Bradley-Terry on reward and on each cost.

    Every draw is seeded by (seed, id of the item), so that neither order nor batch changes a label. Safety labels are
    about the cost `cost_name`. A share `noise` of all labels says the opposite.
    """

    def __init__(self, reward: Score, costs: Mapping[str, Score], *, cost_name: str = HARM, noise: float = 0.0) -> None:
        self._reward, self._costs, self._cost_name, self._noise = reward, dict(costs), cost_name, noise

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        """`labels_each` independent labels of every answer."""
        cost, verdicts = self._costs[self._cost_name], []
        for item in items:
            unsafe = generator_of(seed, "safety", item.id).random(labels_each) < self._chance(cost(item))
            verdicts.append(SafetyLabels(item, tuple(Verdict.UNSAFE if bit else Verdict.SAFE for bit in unsafe)))
        return verdicts

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        """P(first is better) = sigmoid(reward difference), P(first is costlier) = sigmoid(difference of a cost)."""
        labelled = []
        for pair in pairs:
            scores = (self._reward, *self._costs.values())
            draws = generator_of(seed, "compare", pair.id).random(len(scores))
            better, *costlier = (
                Verdict.FIRST if draw < self._chance(score(pair.first) - score(pair.second)) else Verdict.SECOND
                for draw, score in zip(draws, scores, strict=True)
            )
            labelled.append(LabelledPair(pair, better, dict(zip(self._costs, costlier, strict=True))))
        return labelled

    def _chance(self, logit: float) -> float:
        return float(self._noise + (1.0 - 2.0 * self._noise) * expit(logit))
