"""Who labels answers and pairs, as the recipe says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from scipy.special import expit

from pddpo_ray.algorithms.stages import neighbours_of
from pddpo_ray.backends.backends import Backends, sets_of_prompts
from pddpo_ray.config import (
    Config,
    JudgeConfig,
    JudgeFeedback,
    MixedFeedback,
    ModelFeedback,
    ScoredFeedback,
    ScorerTrainingConfig,
)
from pddpo_ray.config.sections.feedback import InstalledFeedback
from pddpo_ray.contracts import Labeller, Measure
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import Journal
from pddpo_ray.parts.labelling import FeedbackController, MixedComparisons
from pddpo_ray.parts.measuring import with_model
from pddpo_ray.parts.people import Asking, People, RiskOf, people_labeller, stated_risk
from pddpo_ray.parts.sampling import RolloutController
from pddpo_ray.records import (
    HARM,
    Array,
    Decoding,
    LabelledPair,
    Pair,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Verdict,
)
from pddpo_ray.registry import code_of
from pddpo_ray.scorers.fits import OF_FEEDBACK, AtFirstUse, feedback_models, training_of
from pddpo_ray.scoring.held_out import Kind
from pddpo_ray.scoring.interface import AnswerScorer
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint
from pddpo_ray.scoring.judges.judge import Judge, JudgeLabeller
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.theory.estimates.score_spread import spread_of
from pddpo_ray.theory.seeds import seed_of
from pddpo_ray.worlds.truth_by_text import imperfect_model

NOISE, BIAS = 0.7, 0.3
"""Errors of the scores that a world gives in a model's place: their deviation by text, and what is added to costs. A
quarter of the labels at the safety boundary are wrong, more of them unsafe."""


def labelled_reference_answers(
    journal: Journal,
    rollout: RolloutController,
    prompts: Sequence[Prompt],
    reference: PolicyVersion,
    labeller: Labeller,
    settings: ScorerTrainingConfig,
    *,
    max_tokens: int,
    seed: int,
) -> tuple[list[LabelledPair], dict[str, bool]]:
    """Pairs of the reference's answers with their labels, and one safety label per answer; drawn and paid for once."""
    per_prompt = 2 * -(-settings.pairs // len(prompts))
    decoding = Decoding(temperature=settings.temperature, max_tokens=max_tokens)
    answers = rollout.pool("scorers", prompts, reference, per_prompt, decoding)
    pairs = neighbours_of(answers, per_prompt)[: settings.pairs]
    pair_answers = list({answer.id: answer for pair in pairs for answer in (pair.first, pair.second)}.values())
    labelled = labeller.compare(pairs, seed_of(seed, "scorers", "compare"))
    bits = labeller.safety(pair_answers, 1, seed_of(seed, "scorers", "safety"))
    unsafe = {item.response.id: item.labels[0] is Verdict.UNSAFE for item in bits if item.labels}
    if len(labelled) != len(pairs) or len(unsafe) != len(pair_answers):
        raise RunError(f"labels for the scorers are missing: {len(labelled)} of {len(pairs)} pairs were labelled")
    journal.add_metrics({"labels/scorers": 2 * len(pairs) + len(pair_answers)})
    return labelled, unsafe


class Uncompared:
    """contracts.Labeller of a run whose stages all learn from values: its pairs carry no preference."""

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        raise RunError("a run whose limits sources measure asks for no other safety labels")

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        return [LabelledPair(pair, Verdict.ABSTAIN, {HARM: Verdict.ABSTAIN}) for pair in pairs]


EXCLUDED = 0.1
"""Largest share of a round's answers or pairs about which a judge's reply cannot be read in three attempts; beyond it
the run fails, for a judge that says nothing about a tenth is not the judge that was meant."""


@dataclass(frozen=True)
class Labelling:
    """Input of the code of a kind of labels, which returns the part of the run that asks."""

    config: Config
    journal: Journal
    backends: Backends
    rollout: RolloutController
    asking: Asking | None = None
    """How people are asked outside a round's own batches."""

    def part(self, labeller: Labeller, *, excluded: float = 0.0) -> FeedbackController:
        """The part that asks one labeller, and a world's own about its further costs."""
        labellers, kind = {HARM: labeller, **self.backends.further_labellers}, self.config.feedback.kind
        return FeedbackController(labellers, self.journal, seed=self.config.seed, source=kind, excluded=excluded)

    def people(self, scored: RiskOf | None = None) -> People:
        """People through the queue. Raises UserError for a stated risk of no category."""
        risk_of = stated_risk(self.config, sets_of_prompts(self.backends), scored)
        return people_labeller(self.config, self.journal, asking=self.asking, risk_of=risk_of)


def feedback_of(run: Labelling) -> FeedbackController:
    """The feedback part of `feedback.kind`; one that compares nothing where no stage learns from comparisons."""
    config = run.config
    if not config.compares:
        return FeedbackController({HARM: Uncompared()}, run.journal, seed=config.seed, source="nobody")
    part: FeedbackController = code_of("feedback", config.feedback.kind)(run)
    return part


def by_world(run: Labelling) -> FeedbackController:
    return run.part(run.backends.labeller)


def by_people(run: Labelling) -> FeedbackController:
    return run.part(run.people())


def by_judge(run: Labelling) -> FeedbackController:
    return run.part(judge_labeller(run.config.judge, run.journal), excluded=EXCLUDED)


def by_models(run: Labelling) -> FeedbackController:
    """Labels from reward and cost models."""
    models = _scored_labeller(run)
    return FeedbackController({HARM: models}, run.journal, seed=run.config.seed, source="model", models=models)


def by_model_and_people(run: Labelling) -> MixedComparisons:
    """Comparisons by a model and people together; the model may be a world's truth with errors."""
    config, settings = run.config, run.config.feedback
    assert isinstance(settings, MixedFeedback)
    if run.backends.further_labellers:
        raise UserError("feedback.kind=mixed compares by one cost")
    models = imperfect_model(config, noise=NOISE, bias=BIAS) if settings.model == "world" else _scored_labeller(run)
    people = run.people(unsafe_chance(models))
    unsure, random = settings.pairs_unsure, settings.pairs_random
    return MixedComparisons(people, models, run.journal, unsure=unsure, random=random, seed=config.seed)


def judge_labeller(settings: JudgeConfig, journal: Journal) -> JudgeLabeller:
    """Raises UserError where no model is named, or the key's environment variable is not set."""
    endpoint = ChatEndpoint.stated("judge", settings.options, os.environ)
    return JudgeLabeller(Judge(endpoint), lambda: journal.round, journal.add_metrics)


def labels_before(config: Config, journal: Journal, backends: Backends) -> FeedbackController | None:
    """Labeller of the pairs from before round 1: a world's truth where models, a judge or a package's labeller
    answer in the rounds; None: the labeller of the rounds.

    It stands in for people whose preferences exist already.
    """
    machine = isinstance(config.feedback, ModelFeedback | JudgeFeedback | InstalledFeedback)
    if backends.world is None or not machine or not config.compares:
        return None
    return FeedbackController({HARM: backends.labeller}, journal, seed=config.seed, source="world")


def unsafe_chance(models: ScoredLabeller | None) -> RiskOf | None:
    """Chance of unsafe by the cost model, for people who opted out of harmful texts; None without a model."""
    if models is None or "cost" not in models.kinds:
        return None
    return lambda items: expit(models.costs(items)).tolist()


def judging_models(config: Config, feedback: FeedbackController) -> ScoredLabeller | None:
    """The models whose verdicts on pairs the run learns from; None: others give them, people beside models too."""
    return feedback.models if isinstance(config.feedback, ModelFeedback) else None


def measure_of(config: Config, backends: Backends, feedback: FeedbackController) -> Measure:
    """What measures the limits: the backends' sources, and the cost model of feedback."""
    models = feedback.models
    return backends.measure if models is None else with_model(backends.measure, config.stated, models.costs)


def _scored_labeller(run: Labelling) -> ScoredLabeller:
    """Reward and cost models. On a world they learn from labels of the reference's answers; elsewhere from the offline
    pairs and the safety labels that their answers came with; without such labels nothing but their mean sets the zero.
    """
    config, journal, backends, settings = run.config, run.journal, run.backends, run.config.feedback
    assert isinstance(settings, ScoredFeedback)

    def data() -> tuple[Sequence[LabelledPair], Mapping[str, bool]]:
        if backends.world is None and backends.offline is not None:
            return backends.offline(config.seed), backends.offline_unsafe
        return labelled_reference_answers(
            journal,
            run.rollout,
            backends.prompts,
            backends.reference,
            backends.labeller,
            config.scorers,
            max_tokens=config.rollout.max_tokens,
            seed=config.seed,
        )

    training = training_of(config, journal, backends, OF_FEEDBACK)
    kinds = config.asked_models

    @cache
    def models() -> Mapping[Kind, AnswerScorer]:
        return feedback_models(settings, kinds, training, data, config.model.dtype)

    def watch(costs: Array) -> None:
        journal.add_metrics(spread_of(costs, config.dual.cost_max).as_metrics())

    reward, cost = AtFirstUse(lambda: models()["reward"]), AtFirstUse(lambda: models()["cost"])
    scored = cost if "cost" in kinds else None
    return ScoredLabeller(reward, scored, watch=watch, prepare=models)
