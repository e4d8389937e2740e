"""Mixed feedback: a model answers everything, people what it is least sure of and a random share.

    costs of all N answers by the model ──► people label the unsure ones and some drawn evenly
                                        ──► estimate = model's mean + weighted corrections (theory.people_estimates)

However wrong the model is, the cost estimate is unbiased for what people would say about all answers; a good model only
makes it less noisy. Of the pairs, people's answers stand where they were asked and the model's elsewhere: a wrong model
costs accuracy of the fits there, never the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import expit

from pddpo_ray.config import Config, MixedFeedback
from pddpo_ray.contracts import Labeller
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.journal.rows import label_measurements
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.measuring import DRAWS, MACHINE
from pddpo_ray.parts.people import Asking, RiskOf, people_labeller, stated_risk
from pddpo_ray.records import HARM, Array, CostEstimate, Measurement, Pair, Response, SafetyLabels
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.theory.estimates.cost_estimate import Mode, share_bounds, with_missing
from pddpo_ray.theory.estimates.people_estimates import Sample, mixed_from_shares, sample_for_people
from pddpo_ray.theory.seeds import generator, seed_of
from pddpo_ray.worlds.truth_by_text import imperfect_model

MODEL = "model"
PEOPLE = "people"
NOISE, BIAS = 0.7, 0.3
"""Errors of the scores that a world gives in a model's place: their deviation by text, and what is added to costs. A
quarter of the labels at the safety boundary are wrong, more of them unsafe."""


class MixedFeedbackController(FeedbackController):
    """Feedback of one constraint, from a model and from people."""

    def __init__(
        self,
        name: str,
        people: Labeller,
        model: ScoredLabeller,
        settings: MixedFeedback,
        journal: Journal,
        *,
        cost_max: float,
        labels_each: int,
        signal: Mode,
        seed: int,
    ) -> None:
        super().__init__({name: people}, journal, seed=seed, source=PEOPLE)
        self._model = model
        self._settings, self._cost_max = settings, cost_max
        self._labels_each, self._mode = labels_each, signal
        self._screened: dict[int, tuple[list[str], Array, Sample]] = {}

    def prepare(self) -> None:
        self._model.prepare()

    def open_safety(self, items: Sequence[Response], labels_each: int) -> None:
        """The model screens the items; people may begin with those that they are asked about."""
        super().open_safety(self._asked(items), labels_each)

    def safety(self, items: Sequence[Response], labels_each: int, name: str) -> list[SafetyLabels]:
        """Exactly `labels_each` labels by people of the items that they are asked about; the others get none."""
        return super().safety(self._asked(items), labels_each, name)

    def safety_arrived(self, items: Sequence[Response], labels_each: int) -> bool:
        return super().safety_arrived(self._asked(items), labels_each)

    def open_comparisons(self, pairs: Sequence[Pair]) -> None:
        super().open_comparisons(self._compared(pairs))

    def comparisons_arrived(self, pairs: Sequence[Pair]) -> bool:
        return super().comparisons_arrived(self._compared(pairs))

    def estimate_cost(self, verdicts: Sequence[SafetyLabels]) -> CostEstimate:
        """The round's estimate from the labels that `safety` returned. Raises RunError when labels are missing."""
        if self._journal.round not in self._screened:
            raise RunError("mixed feedback: an estimate was asked for before any labels")
        names, costs, sample = self._screened[self._journal.round]
        index_of = {name: index for index, name in enumerate(names)}
        asked = [index_of[item.response.id] for item in verdicts]
        if sorted(asked) != np.flatnonzero(sample.asked).tolist():
            raise RunError(f"mixed feedback: {len(asked)} answers have labels, {int(sample.asked.sum())} were asked")
        safest, worst = (
            self._from_shares(asked, given, costs, sample) for given in share_bounds(verdicts, self._labels_each)
        )
        return with_missing(safest, worst)

    def measure_draws(
        self, items: Sequence[Response], labels_each: int, constraint: str, batch: str, share: float
    ) -> None:
        """Journals the model's word about every draw of a certificate's batch, and people's labels of those that an
        independent coin with the chance `share` shows them."""
        phase = f"{DRAWS}{batch}"

        def by_model() -> int:
            values = expit(self._model.costs(items)).tolist()
            said = [
                Measurement(constraint, one.id, value, source=MODEL) for one, value in zip(items, values, strict=True)
            ]
            self._journal.add_measurements(phase, said, items)
            return len(said)

        def by_people() -> int:
            coins = generator(self._seed, "people of a certificate", self._journal.round, batch).random(len(items))
            shown = [item for item, coin in zip(items, coins, strict=True) if coin < share]
            labelled = self._labelled(shown, labels_each, constraint, may_lack=True) if shown else []
            audits = label_measurements(labelled, PEOPLE, {one.id: share for one in shown}, first=1)
            self._journal.add_measurements(phase, audits, items)
            return len(shown)

        self._journal.once(f"{MACHINE}{phase}", by_model)
        self._journal.once(f"{PEOPLE}-{phase}", by_people)

    def _chances(self, items: Sequence[Response]) -> Mapping[str, float]:
        if self._journal.round not in self._screened:
            return {}
        names, _, sample = self._screened[self._journal.round]
        return dict(zip(names, sample.chances.tolist(), strict=True))

    def _from_shares(self, asked: Sequence[int], given: Array, costs: Array, sample: Sample) -> CostEstimate:
        """The estimate from the unsafe shares of the items that were asked about."""
        shares = np.full(len(costs), np.nan)
        shares[asked] = given
        return mixed_from_shares(
            self._signal(costs),
            shares,
            sample,
            labels_each=self._labels_each,
            cost_max=self._cost_max,
            mode=self._mode,
        )

    def _signal(self, costs: Array) -> Array:
        """The model's costs on the scale of what is averaged."""
        if self._mode == "unsafe_rate":
            return np.asarray(expit(costs), dtype=np.float64)
        return np.clip(costs, -self._cost_max, self._cost_max)

    def _asked(self, items: Sequence[Response]) -> list[Response]:
        """The items that people are asked about; the model screens the answers of a round once."""
        names, number = [item.id for item in items], self._journal.round
        if number not in self._screened:
            rows = self._journal.once("screen", lambda: self._screen(items))
            shown = np.array([row["asked"] for row in rows], dtype=bool)
            sample = Sample(shown, np.array([row["chance"] for row in rows]))
            self._screened[number] = [row["item"] for row in rows], np.array([row["cost"] for row in rows]), sample
        screened, _, sample = self._screened[number]
        if screened != names:
            raise RunError(f"round {number}: the answers are not those that the model screened")
        return [item for item, one in zip(items, sample.asked, strict=True) if one]

    def _screen(self, items: Sequence[Response]) -> list[dict[str, str | float | bool]]:
        """The model's cost of every answer, and whom people are asked about."""
        costs = self._model.costs(items)
        sample = self._sample(costs, self._settings.unsure, self._settings.random, "screen")
        self._journal.add_metrics(
            {"mixed/model_cost": float(self._signal(costs).mean()), "mixed/asked": float(sample.asked.sum())}
        )
        return [
            {"item": item.id, "cost": float(cost), "chance": float(chance), "asked": bool(asked)}
            for item, cost, chance, asked in zip(items, costs, sample.chances, sample.asked, strict=True)
        ]

    def _collect_comparisons(self, pairs: Sequence[Pair]) -> int:
        """People's answers where they are asked, the model's for all other pairs; the journal tells them apart."""
        shown = self._compared(pairs)
        rest = [pair for pair in pairs if pair.id not in {one.id for one in shown}]
        answered = self._ask_to_compare(shown, HARM) if shown else {}
        by_model = self._model.compare(rest, seed_of(self._seed, self._journal.round, "compare-model")) if rest else []
        self._journal.add_pair_labels([answered[pair.id] for pair in shown], PEOPLE)
        self._journal.add_pair_labels(by_model, MODEL)
        self._journal.add_metrics({"mixed/pairs_asked": float(len(shown))})
        return len(pairs)

    def _compared(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The pairs that people are asked about."""
        unsure, random = self._settings.pairs_unsure, self._settings.pairs_random
        sample = self._sample(self._margins(pairs), unsure, random, "screen-pairs") if pairs else None
        return [] if sample is None else [pair for pair, one in zip(pairs, sample.asked, strict=True) if one]

    def _margins(self, pairs: Sequence[Pair]) -> Array:
        """How sure the model is of a pair: the smaller of its differences in reward and in cost. -> [n]"""
        sides = [pair.first for pair in pairs] + [pair.second for pair in pairs]
        rewards, costs = self._model.rewards(sides), self._model.costs(sides)
        count = len(pairs)
        return np.minimum(np.abs(rewards[:count] - rewards[count:]), np.abs(costs[:count] - costs[count:]))

    def _sample(self, margins: Array, unsure: int, random: int, purpose: str) -> Sample:
        """A score of 0 (safe or unsafe, one or the other) is where the model is least sure."""
        seed = [self._seed, seed_of(self._seed, self._journal.round, purpose)]
        return sample_for_people(-np.abs(margins), unsure=unsure, random=random, seed=seed)


def mixed_feedback(
    constraint: str,
    config: Config,
    journal: Journal,
    model: ScoredLabeller | None = None,
    asking: Asking | None = None,
    categories_of: Mapping[str, Sequence[str]] | None = None,
) -> MixedFeedbackController:
    """A model and people together, as the recipe divides the work; no model: scores with errors from the truth.

    `categories_of` names each prompt's categories by its id. Raises UserError for a stated risk of none of them.
    """
    settings = config.feedback
    assert isinstance(settings, MixedFeedback)
    if model is None:
        model = imperfect_model(config, noise=NOISE, bias=BIAS)
    risk_of = stated_risk(config, categories_of or {}, _unsafe_chance(model))
    people = people_labeller(config, journal, asking=asking, risk_of=risk_of)
    return MixedFeedbackController(
        constraint,
        people,
        model,
        settings,
        journal,
        cost_max=config.dual.cost_max,
        labels_each=config.labels_each,
        signal=config.signal,
        seed=config.seed,
    )


def _unsafe_chance(model: ScoredLabeller) -> RiskOf:
    """What the model thinks of an answer, for people who opted out of harmful texts."""
    return lambda items: expit(model.costs(items)).tolist()
