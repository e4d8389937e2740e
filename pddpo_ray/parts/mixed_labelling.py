"""Mixed feedback: people compare the pairs of which a model is least sure and a random share, the model the rest.

A wrong model costs accuracy of the fits, never a limit: what people audit of a limit is its own (`audited_by`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pddpo_ray.contracts import Labeller
from pddpo_ray.journal import Journal
from pddpo_ray.limits.sources import asked_first
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.records import HARM, Pair
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.theory.seeds import seed_of

MODEL, PEOPLE = "model", "people"


class MixedComparisons(FeedbackController):
    """Comparisons by a model and by people, who are asked about `unsure` pairs and `random` others of a round."""

    models: ScoredLabeller

    def __init__(
        self, people: Labeller, models: ScoredLabeller, journal: Journal, *, unsure: int, random: int, seed: int
    ) -> None:
        super().__init__({HARM: people}, journal, seed=seed, source=PEOPLE, models=models)
        self._unsure, self._count = unsure, unsure + random

    def open_comparisons(self, pairs: Sequence[Pair]) -> None:
        super().open_comparisons(self._shown(pairs))

    def comparisons_arrived(self, pairs: Sequence[Pair]) -> bool:
        return super().comparisons_arrived(self._shown(pairs))

    def _collect_comparisons(self, pairs: Sequence[Pair]) -> int:
        """People's answers where they are asked, the model's for all other pairs; the journal tells them apart."""
        shown = self._shown(pairs)
        rest = [pair for pair in pairs if pair.id not in {one.id for one in shown}]
        answered = self._ask_to_compare(shown, HARM) if shown else {}
        by_model = self.models.compare(rest, seed_of(self._seed, self._journal.round, "compare-model")) if rest else []
        self._journal.add_pair_labels([answered[pair.id] for pair in shown], PEOPLE)
        self._journal.add_pair_labels(by_model, MODEL)
        self._journal.add_metrics({"mixed/pairs_asked": float(len(shown))})
        return len(pairs)

    def _shown(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The pairs that people are asked about. A model is sure of a pair as far as the smaller of its differences in
        reward and in cost goes."""
        if not pairs:
            return []
        sides = [pair.first for pair in pairs] + [pair.second for pair in pairs]
        scores = np.stack([self.models.rewards(sides), self.models.costs(sides)]).reshape(2, 2, len(pairs))
        margins = np.abs(scores[:, 0] - scores[:, 1]).min(axis=0).tolist()
        seed = seed_of(self._seed, self._journal.round, "screen-pairs")
        return [pairs[index] for index in asked_first("pairs", margins, self._unsure, self._count, seed)]
