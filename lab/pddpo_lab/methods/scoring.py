"""Scores in place of labels: fitted once before the first round, journalled, and what follows from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from scipy.special import expit

from pddpo_lab.methods.explicit_dual import descend
from pddpo_lab.methods.linear_scores import Features, LinearScorer, fit_cost, fit_reward, shift_to_rate, with_constant
from pddpo_lab.methods.settings import ExplicitDualSettings
from pddpo_lab.policy_gradient.command import Critics
from pddpo_ray.algorithms.stages import Parts
from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.driver.build import BuiltParts, WhitenedFeatures
from pddpo_ray.exploration.explorer import PRIOR_SD
from pddpo_ray.journal import Journal
from pddpo_ray.parts.fitting import TrainerController
from pddpo_ray.parts.sampling import RolloutController
from pddpo_ray.records import (
    Array,
    CostEstimate,
    Decoding,
    LabelledPair,
    Pair,
    PairRow,
    PolicyVersion,
    Prompt,
    Response,
)
from pddpo_ray.scorers.fits import FITTED, HELD_OUT, OF_METHOD, ScorerTraining, training_of
from pddpo_ray.scorers.gate import held_multiplier, stop_or_warn
from pddpo_ray.scoring.held_out import KINDS, compared_answers, parts_of, rows_of
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.estimates.cost_estimate import mean_with_error
from pddpo_ray.theory.multipliers.dual import LimitState
from pddpo_ray.theory.seeds import generator, seed_of

logger = logging.getLogger(__name__)

Score = Callable[[Sequence[Response]], Array]
LogProbs = Callable[[PolicyVersion, Sequence[Response]], Array]


class Scorer(Protocol):
    """Reward and cost of answers; only differences within a prompt have a meaning unless it says otherwise."""

    def __call__(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        """-> rewards [n], costs [n]"""
        ...


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


@dataclass(frozen=True)
class UnsafeChances:
    """A scorer whose cost, a logit up to `shift`, is read as the chance of a label "unsafe": for limits on a rate."""

    scorer: Scorer
    shift: float = 0.0

    def __call__(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        rewards, logits = self.scorer(responses)
        return rewards, expit(logits + self.shift)


@dataclass(frozen=True)
class ScoringPlan:
    """What the recipe says about scores and the multiplier that follows from them."""

    seed: int
    beta: float
    threshold: float
    """d: the limit on the expected cost, or on the rate of unsafe labels."""
    reward_max: float
    cost_max: float
    upper: float
    """Largest multiplier."""
    answers: int
    """Answers of the reference per prompt."""
    bounded: bool
    """A table's scores: one-hot features, weights inside the box. Otherwise features are dense and shrunk by ridge."""
    ridge: float
    """1 / variance of the prior of a dense weight."""
    decoding: Decoding
    first: float = 0.0
    """The multiplier that stays where the scores are no better than chance."""
    at_chance: Literal["hold", "stop"] = "hold"
    """`scorers.at_chance`."""
    by_prompt: bool = False
    """Whether prompts are a sample, so that each gives one comparison."""
    rate: bool = False
    """Whether the limit is on a rate: a cost's score is then read as the chance of a label "unsafe"."""
    prior: tuple[float, ...] | None = None


class ScoringController:
    """Fits scorers, finds the limit's multiplier with them and draws pseudo-labels from them."""

    def __init__(
        self,
        plan: ScoringPlan,
        journal: Journal,
        store: ArtifactStore,
        trainer: TrainerController,
        rollout: RolloutController,
        prompts: Sequence[Prompt],
        features: Callable[[Sequence[LabelledPair]], Features],
        training: ScorerTraining | None = None,
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._store = store
        self._trainer = trainer
        self._rollout = rollout
        self._prompts = tuple(prompts)
        self._features = features
        self._training = training

    @property
    def threshold(self) -> float:
        return self._plan.threshold

    @property
    def upper(self) -> float:
        return self._plan.upper

    # --- scorers ------------------------------------------------------------------------------------------------

    def models(self, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool]) -> Scorer:
        """Reward and cost models from the pairs and one safety label per answer."""
        features = self._features(labelled)

        def fit() -> dict[str, Any]:
            known = _computed_once(features, labelled)
            scorer = self._fitted(known, labelled, unsafe)
            path, sha256 = self._store.write_tensors("scorers", {"reward": scorer.reward, "cost": scorer.cost})
            return {"path": path, "sha256": sha256, **self._judged(known, labelled, unsafe)}

        stored = self._journal.once(FITTED, fit)
        stop_or_warn(self._plan.at_chance, self._journal)
        weights = self._store.read_tensors(stored["path"], stored["sha256"])
        return self._as_limited(self._scorer(features, weights["reward"], weights["cost"]))

    def _as_limited(self, scorer: Scorer) -> Scorer:
        return UnsafeChances(scorer) if self._plan.rate else scorer

    def _fitted(self, features: Features, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool]) -> LinearScorer:
        plan = self._plan
        bounds = (plan.reward_max, plan.cost_max) if plan.bounded else (None, None)
        shrunk = {} if plan.bounded else {"ridge": plan.ridge}
        reward = fit_reward(features, labelled, bound=bounds[0], **shrunk)
        return self._scorer(features, reward, fit_cost(features, labelled, unsafe, bound=bounds[1], **shrunk))

    def _scorer(self, features: Features, reward: Array, cost: Array) -> LinearScorer:
        return LinearScorer(features, reward, cost, self._plan.reward_max, self._plan.cost_max)

    def _judged(
        self, features: Features, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool]
    ) -> dict[str, Any]:
        """Trials of the same fit on half of the pairs, or of their prompts, on the other half."""
        plan = self._plan
        keys = [item.pair.prompt.token_ids if plan.by_prompt else index for index, item in enumerate(labelled)]
        parts = parts_of(keys, 0.5, 0.0, seed_of(plan.seed, "scores held out"))
        half = [item for item, part in zip(labelled, parts, strict=True) if part == "fit"]
        rest = [item for item, part in zip(labelled, parts, strict=True) if part == "judge"]
        if not all(rows_of(part, kind) for part in (half, rest) for kind in KINDS):
            return {}
        scorer = self._fitted(features, half, unsafe)
        scores: tuple[Score, Score] = (lambda answers: scorer(answers)[0], lambda answers: scorer(answers)[1])
        return {
            kind: {
                HELD_OUT: compared_answers(
                    rest, kind, unsafe, score, by_prompt=plan.by_prompt, seed=seed_of(plan.seed, "scores judged", kind)
                ).as_metrics()
            }
            for kind, score in zip(KINDS, scores, strict=True)
        }

    @property
    def held(self) -> bool:
        """Whether the multiplier has to stay where it is: the cost's scores are no better than chance."""
        return held_multiplier(self._journal) is not None

    def trained(self, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool]) -> tuple[Scorer, Critics | None]:
        """Score models trained on the pairs, and their weights as critics to begin with; in a table fitted scores."""
        if self._training is None:
            return self.models(labelled, unsafe), None
        stored = self._training.stored(lambda: (labelled, unsafe))
        scorer = self._as_limited(self._training.models(lambda: (labelled, unsafe)))
        return scorer, Critics(stored["reward"], stored["cost"])

    def policies(self, reference: PolicyVersion, helpful: PolicyVersion, harmless: PolicyVersion) -> Scorer:
        """Implicit scores of two policies. Differences of costs have a meaning, their zero has none."""
        return PolicyScorer(self._trainer.log_probs, reference, helpful, harmless, self._plan.beta)

    def anchored(self, scorer: Scorer, answers: Sequence[Response], reference_cost: float) -> Scorer:
        """The scorer with its cost's zero placed so that the reference's mean cost, or rate, is what labels say.

        So the limit d on the cost is the improvement over the reference that the original asks for.
        """
        costs = scorer(answers)[1].reshape(len(self._prompts), -1)
        if self._plan.rate:
            return UnsafeChances(scorer, shift_to_rate(costs, reference_cost, self._plan.prior))
        mean = float(np.average(costs.mean(axis=1), weights=self._plan.prior))
        return ShiftedCosts(scorer, reference_cost - mean)

    # --- what follows from scores -------------------------------------------------------------------------------

    def reference_answers(self, reference: PolicyVersion) -> list[Response]:
        """`n` answers of the reference to every prompt, prompt by prompt; drawn once."""
        self._rollout.publish(reference)
        return self._rollout.pool("dual", self._prompts, reference, self._plan.answers, self._plan.decoding)

    def explicit_multiplier(self, scorer: Scorer, answers: Sequence[Response]) -> float:
        """Minimiser of the explicit dual over the reference's answers, within [0, upper]; the recipe's first multiplier
        where the cost's scores are no better than chance."""

        def minimise() -> dict[str, float]:
            if reason := held_multiplier(self._journal):
                logger.warning("%s", reason)
                return {"multiplier": self._plan.first}
            rewards, costs = (values.reshape(len(self._prompts), -1) for values in scorer(answers))
            plan = self._plan
            prior = None if plan.prior is None else np.array(plan.prior)
            dual = descend(rewards, plan.threshold - costs, plan.beta, upper=plan.upper, prior=prior)
            self._journal.add_metrics({"dual/explicit": dual.multiplier, "dual/sample_size": dual.sample_size})
            return {"multiplier": dual.multiplier}

        return float(self._journal.once("explicit-multiplier", minimise)["multiplier"])

    def pseudo_labels(self, pairs: Sequence[Pair], scorer: Scorer, multiplier: float) -> list[PairRow]:
        """One Bernoulli label per pair: P(first is chosen) = sigmoid(w(first) - w(second)), w = r - multiplier c."""
        rewards, costs = scorer([answer for pair in pairs for answer in (pair.first, pair.second)])
        values = (rewards - multiplier * costs).reshape(-1, 2)
        draws = generator(self._plan.seed, self._journal.round, "pseudo-labels").random(len(pairs))
        rows = []
        for pair, (first, second), draw in zip(pairs, values, draws, strict=True):
            chosen, rejected = (pair.first, pair.second) if draw < expit(first - second) else (pair.second, pair.first)
            rows.append(PairRow(pair.id, pair.prompt.token_ids, chosen.token_ids, rejected.token_ids))
        return rows

    def cost_of(self, scorer: Scorer, answers: Sequence[Response]) -> CostEstimate:
        """Mean cost of fresh answers by the scorer, with its standard error; no label is asked for."""
        value, error = mean_with_error(scorer(answers)[1])
        return CostEstimate(value, error, len(answers), 0, "cost_model")


def _computed_once(features: Features, labelled: Sequence[LabelledPair]) -> Features:
    """The features of the pairs' answers, looked up."""
    answers = {answer.id: answer for item in labelled for answer in (item.pair.first, item.pair.second)}
    table, places = features(list(answers.values())), {name: index for index, name in enumerate(answers)}
    return lambda responses: table[[places[one.id] for one in responses]]


def scores_of(parts: Parts) -> ScoringController:
    """The scoring part of a method whose record names `scoring_of`."""
    made: ScoringController = parts.own
    return made


def scoring_of(config: Config, backends: Backends, parts: BuiltParts, first: LimitState) -> ScoringController:
    """The scoring part. Nothing is fitted or drawn before a method asks for it."""
    journal, trainer, settings = parts.journal, parts.trainer, config.method_settings
    plan = ScoringPlan(
        seed=config.seed,
        beta=config.beta,
        threshold=first.limit,
        reward_max=config.reward_max,
        cost_max=config.dual.cost_max,
        upper=first.upper,
        answers=settings.answers if isinstance(settings, ExplicitDualSettings) else 0,
        bounded=backends.features == "one-hot",
        ridge=PRIOR_SD**-2,
        decoding=Decoding(max_tokens=config.rollout.max_tokens),
        first=first.upper / 2.0 if config.dual.first is None else config.dual.first,
        at_chance=config.scorers.at_chance,
        by_prompt=backends.world is None,
        rate=config.typed_limits[0].quantity.kind == "rate",
        prior=None if backends.prior is None else tuple(backends.prior),
    )
    training = training_of(config, journal, backends, OF_METHOD) if backends.features == "hidden" else None

    def features(labelled: Sequence[LabelledPair]) -> Features:
        match backends.features:
            case "one-hot":
                return trainer.features
            case "linear":
                return with_constant(trainer.features)
        answers = [answer for item in labelled for answer in (item.pair.first, item.pair.second)]
        whitened = WhitenedFeatures(answers, config, journal, backends, trainer)
        whitened.prepare()  # a phase of its own, so before the one that fits the scores
        return with_constant(whitened)

    return ScoringController(
        plan, journal, backends.store, trainer, parts.rollout, backends.prompts, features, training
    )
