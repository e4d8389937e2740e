"""Scores as the methods see them: fitted once before the first round, journalled, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from pddpo_ray.contracts import Critics, Scorer
from pddpo_ray.journal import Journal
from pddpo_ray.loop.fitting import TrainerController
from pddpo_ray.loop.sampling import RolloutController
from pddpo_ray.loop.scorer_fits import ScorerTraining
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
from pddpo_ray.scoring.linear_scores import Features, LinearScorer, fit_cost, fit_reward
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.cost_estimate import mean_with_error
from pddpo_ray.theory.explicit_dual import descend
from pddpo_ray.theory.seeds import generator

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


@dataclass(frozen=True)
class ScoringPlan:
    """What the recipe says about scores and the multiplier that follows from them."""

    seed: int
    beta: float
    threshold: float
    """d: the limit on the expected cost."""
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

    def models(self, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool]) -> LinearScorer:
        """Reward and cost models from the pairs and one safety label per answer."""
        features = self._features(labelled)
        plan = self._plan
        limits = {"reward": plan.reward_max, "cost": plan.cost_max} if plan.bounded else {"reward": None, "cost": None}
        shrunk = {} if plan.bounded else {"ridge": plan.ridge}

        def fit() -> dict[str, str]:
            weights = {
                "reward": fit_reward(features, labelled, bound=limits["reward"], **shrunk),
                "cost": fit_cost(features, labelled, unsafe, bound=limits["cost"], **shrunk),
            }
            path, sha256 = self._store.write_tensors("scorers", weights)
            return {"path": path, "sha256": sha256}

        stored = self._journal.once("scorers", fit)
        weights = self._store.read_tensors(stored["path"], stored["sha256"])
        return LinearScorer(features, weights["reward"], weights["cost"], plan.reward_max, plan.cost_max)

    def trained(self, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool]) -> tuple[Scorer, Critics | None]:
        """Score models trained on the pairs, and their weights as critics to begin with; in a table fitted scores."""
        if self._training is None:
            return self.models(labelled, unsafe), None
        stored = self._training.stored(lambda: (labelled, unsafe))
        return self._training.models(lambda: (labelled, unsafe)), Critics(stored["reward"], stored["cost"])

    def policies(self, reference: PolicyVersion, helpful: PolicyVersion, harmless: PolicyVersion) -> Scorer:
        """Implicit scores of two policies. Differences of costs have a meaning, their zero has none."""
        return PolicyScorer(self._trainer.log_probs, reference, helpful, harmless, self._plan.beta)

    def anchored(self, scorer: Scorer, answers: Sequence[Response], reference_cost: float) -> Scorer:
        """The scorer with its cost's zero placed so that the reference's mean cost is what labels say.

        So the limit d on the cost is the improvement over the reference that the original asks for.
        """
        costs = scorer(answers)[1].reshape(len(self._prompts), -1)
        mean = float(np.average(costs.mean(axis=1), weights=self._plan.prior))
        return ShiftedCosts(scorer, reference_cost - mean)

    # --- what follows from scores -------------------------------------------------------------------------------

    def reference_answers(self, reference: PolicyVersion) -> list[Response]:
        """So many answers of the reference to every prompt, prompt by prompt; drawn once."""
        self._rollout.publish(reference)
        return self._rollout.pool("dual", self._prompts, reference, self._plan.answers, self._plan.decoding)

    def explicit_multiplier(self, scorer: Scorer, answers: Sequence[Response]) -> float:
        """Minimiser of the explicit dual over the reference's answers, within [0, upper]."""

        def minimise() -> dict[str, float]:
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
