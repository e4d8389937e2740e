"""Labels drawn from scores (contracts.Labeller): feedback from reward and cost models instead of people.

Z ~ Bernoulli(sigmoid(c))            safe or unsafe
P(first better)   = sigmoid(r(first) - r(second))
P(first costlier) = sigmoid(c(first) - c(second))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import expit

from pddpo_ray.errors import RunError
from pddpo_ray.records import HARM, Array, LabelledPair, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.scoring.held_out import KINDS, Kind
from pddpo_ray.scoring.interface import AnswerScorer
from pddpo_ray.theory.seeds import generator_of


class ScoredLabeller:
    """Every draw is seeded by (seed, id of the item), so that neither order nor batch changes a label.

    A score that is not a number raises RunError: a failed scorer never becomes a label. `watch` receives the costs of
    the answers that are labelled safe or unsafe. Without a cost model (`cost` None) no pair says which answer is
    costlier, and asking for a cost is a RunError.
    """

    def __init__(
        self,
        reward: AnswerScorer,
        cost: AnswerScorer | None,
        *,
        watch: Callable[[Array], None] = lambda costs: None,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._reward, self._cost, self._watch = reward, cost, watch
        self.prepare = prepare
        """Trains or opens the models."""

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        """`labels_each` labels of every answer, independent given its score."""
        labelled, costs = [], self.costs(items)
        self._watch(costs)
        for item, chance in zip(items, expit(costs), strict=True):
            draws = generator_of(seed, "scores safety", item.id).random(labels_each)
            unsafe = draws < chance
            labelled.append(SafetyLabels(item, tuple(Verdict.UNSAFE if bit else Verdict.SAFE for bit in unsafe)))
        return labelled

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        """One helpful and one harmful label per pair. Equal scores are a fair coin."""
        answers = [answer for pair in pairs for answer in (pair.first, pair.second)]
        rewards = self._scores(self._reward, answers).reshape(-1, 2)
        costs = [None] * len(pairs) if self._cost is None else self.costs(answers).reshape(-1, 2)
        labelled = []
        for pair, reward, cost in zip(pairs, rewards, costs, strict=True):
            draws = generator_of(seed, "scores compare", pair.id).random(2)
            helpful = self._verdict_of_draw(reward[0], reward[1], draws[0])
            harmful = Verdict.ABSTAIN if cost is None else self._verdict_of_draw(cost[0], cost[1], draws[1])
            labelled.append(LabelledPair(pair, helpful, {HARM: harmful}))
        return labelled

    def costs(self, items: Sequence[Response]) -> Array:
        """The cost model's own scores. -> [n]"""
        if self._cost is None:
            raise RunError("no limit of this run asks for a cost, so that it has no cost model (feedback.cost)")
        return self._scores(self._cost, items)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of its models."""
        return ("reward",) if self._cost is None else KINDS

    def rewards(self, items: Sequence[Response]) -> Array:
        """The reward model's own scores. -> [n]"""
        return self._scores(self._reward, items)

    def _verdict_of_draw(self, first: float, second: float, draw: float) -> Verdict:
        return Verdict.FIRST if draw < expit(first - second) else Verdict.SECOND

    def _scores(self, scorer: AnswerScorer, items: Sequence[Response]) -> Array:
        if not items:
            return np.empty(0)
        scores = scorer.score(items)
        if len(scores) != len(items):
            raise RunError(f"scorer {scorer.name} was asked for {len(items)} scores and returned {len(scores)}")
        wrong = np.flatnonzero(~np.isfinite(scores))
        if wrong.size:
            first = items[int(wrong[0])].id
            raise RunError(f"scorer {scorer.name}: {wrong.size} of {len(items)} scores are no numbers, first {first}")
        return scores
