"""From a resolved recipe and its backends to the parts that a page calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pddpo_ray.algorithms.stages import Parts, Sizes
from pddpo_ray.config import (
    AnytimeRule,
    BudgetRefit,
    Config,
    ConstraintConfig,
    DeterminantRefit,
    DualConfig,
    FitConfig,
    FixedRule,
    GeometricRefit,
    JudgeFeedback,
    LogRule,
    MixedFeedback,
    ModelFeedback,
    NewtonRule,
    PeopleFeedback,
    PidRule,
    ProjectedRule,
    Refit,
    UnionRefit,
    WorldScores,
)
from pddpo_ray.contracts import FitSettings, Labeller
from pddpo_ray.errors import UserError
from pddpo_ray.exploration.explorer import BonusKind, OptimisticExplorer
from pddpo_ray.exploration.features import Features, Whitening, fit_whitening, whitened, with_constant
from pddpo_ray.journal import Journal
from pddpo_ray.loop.backends import Backends
from pddpo_ray.loop.dual_step import DualController, LocalDual
from pddpo_ray.loop.exploring import ExplorationController
from pddpo_ray.loop.fitting import FitPlan, TrainerController
from pddpo_ray.loop.labelling import FeedbackController
from pddpo_ray.loop.method_scores import ScoringController, ScoringPlan
from pddpo_ray.loop.mixed_labelling import MixedFeedbackController
from pddpo_ray.loop.preferences import Preferences
from pddpo_ray.loop.prompts import Prompts
from pddpo_ray.loop.sampling import Proposal, RolloutController
from pddpo_ray.loop.scored_labelling import ScoredFeedbackController, labelled_reference_answers
from pddpo_ray.loop.scorer_fits import ScorerTraining, feedback_models
from pddpo_ray.records import CostEstimate, Decoding, LabelledPair, Pair, PolicyVersion, Response, SafetyLabels, Verdict
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.storage.merging import merge_versions
from pddpo_ray.theory import dual as dual_rules
from pddpo_ray.theory.cost_estimate import estimate_cost
from pddpo_ray.theory.refit import Budget, Determinant, Geometric, RefitPolicy, Union
from pddpo_ray.theory.seeds import generator

CONSTRAINT = "cost"


def build_parts(config: Config, journal: Journal, backends: Backends, *, rounds: int, online: bool) -> Parts:
    """All parts, with the work before the first round done or read back. The page is ready to run."""
    trainer = TrainerController(
        backends.trainer,
        journal,
        fit_plan(config),
        seed=config.seed,
        constraints=len(config.constraints),
        baseline=lambda: journal.samples(0, "baseline"),
    )
    decoding = Decoding(max_tokens=config.rollout.max_tokens)
    rollout = RolloutController(
        backends.engines,
        journal,
        seed=config.seed,
        decoding=decoding,
        reference=backends.reference,
        proposal=proposal_of(config, len(backends.prompts)),
        log_probs=trainer.log_probs,
        verify=DeliveryCheck(trainer.log_probs, backends.canaries, config.rollout.canary_tolerance, backends.tokenizer),
    )
    _record_reference(journal, backends)
    feedback = feedback_of(config, journal, backends, rollout)
    baseline = _draw_pools(config, journal, backends, rollout, online)
    preferences = Preferences(journal, backends.store, tuple(config.thresholds))
    before = feedback_before(config, journal, backends, feedback)
    _offline_pairs(config, journal, backends, rollout, before, preferences)
    state = dual_state(config, backends, rounds)
    warmup = rounds if isinstance(config.dual.rule, FixedRule) else config.dual.warmup_rounds
    owner = LocalDual(state, warmup_rounds=warmup) if backends.own_dual is None else backends.own_dual(state, warmup)
    dual = DualController(owner, journal)
    explorer = None
    if online:
        explorer = _exploration(config, journal, backends, trainer, dual, baseline)
    return Parts(
        journal=journal,
        trainer=trainer,
        rollout=rollout,
        feedback=feedback,
        dual=dual,
        prompts=Prompts(backends.prompts, journal, config.seed, backends.prior),
        preferences=preferences,
        estimate_cost=_estimator_of(config, feedback),
        explorer=explorer,
        scoring=_scoring(config, journal, backends, trainer, rollout, state[CONSTRAINT].upper),
        merge=partial(merge_versions, backends.store),
    )


def sizes_of(config: Config, rounds: int) -> Sizes:
    return Sizes(
        rounds=rounds,
        responses=config.feedback.responses,
        labels_each=config.feedback.labels_each,
        pair_prompts=config.explore.prompts,
        beta=config.beta,
        method=config.method,
        reward_max=config.reward_max,
        cost_max=config.dual.cost_max,
    )


# --- plain values from the recipe ---------------------------------------------------------------------------------


def fit_plan(config: Config) -> FitPlan:
    """Settings of all fits of a run."""
    trainer = config.trainer

    def settings(fit: FitConfig) -> FitSettings:
        every = trainer.model_dump(include={"micro_pairs", "activation_gib", "support"})
        return FitSettings(**fit.model_dump(), **every)

    return FitPlan(
        reward=settings(trainer.reward),
        cost=settings(trainer.cost),
        first_reward=settings(trainer.first_reward),
        first_cost=settings(trainer.first_cost),
        warm_start=trainer.warm_start,
        skip_below=config.skip_below,
        refit=refit_policy(trainer.refit),
        merge_duplicates=trainer.merge_duplicates,
        last_rate=trainer.last_rate,
        ppo=config.ppo,
        rounds=config.rounds,
        alpha=config.explore.alpha if config.explore.loss == "xpo" else 0.0,
    )


def refit_policy(settings: Refit) -> RefitPolicy:
    """How much of the past a fit sees."""
    match settings:
        case UnionRefit(cold=cold):
            return Union(cold)
        case BudgetRefit(rows=rows, per_new=per_new):
            return Budget(rows, per_new)
        case GeometricRefit(factor=factor, rows=rows, per_new=per_new):
            return Geometric(factor, Budget(rows, per_new))
        case DeterminantRefit(growth=growth, rows=rows, per_new=per_new):
            return Determinant(growth, Budget(rows, per_new))


def proposal_of(config: Config, prompts: int) -> Proposal:
    """Half of the candidates from the reference where a bonus explores, none where the policy's own answers do.

    The pool of proposals doubles as the calibration set of the features.
    """
    explores = config.explore.bonus != "off" and config.algorithm != "o-pd-dpo-paper"
    candidates = config.rollout.candidates
    pool = max(candidates, math.ceil(config.explore.calibration / prompts))
    share = 0.5 if explores else 0.0
    return Proposal(candidates, share, config.rollout.proposal_temperature, pool)


def feedback_of(config: Config, journal: Journal, backends: Backends, rollout: RolloutController) -> FeedbackController:
    """The feedback part: one labeller, reward and cost models, or a model and people together."""
    if isinstance(config.feedback, ModelFeedback):
        return _scored_feedback(config, journal, backends, rollout)
    if isinstance(config.feedback, MixedFeedback):
        return _mixed_feedback(config, journal, backends, rollout)
    labellers = {CONSTRAINT: labeller_of(config, journal, backends), **backends.further_labellers}
    excluded = config.feedback.excluded if isinstance(config.feedback, JudgeFeedback) else 0.0
    return FeedbackController(labellers, journal, seed=config.seed, source=config.feedback.kind, excluded=excluded)


def labeller_of(config: Config, journal: Journal, backends: Backends) -> Labeller:
    """Who labels: the backends' own source, or people through the queue in the run's database."""
    if isinstance(config.feedback, JudgeFeedback):
        from pddpo_ray.loop.judge_labelling import judge_labeller

        return judge_labeller(config.feedback, journal)
    if not isinstance(config.feedback, PeopleFeedback):
        return backends.labeller
    from pddpo_ray.loop.people_labelling import people_labeller

    return people_labeller(config.feedback, journal, cost_max=config.dual.cost_max)


def feedback_before(
    config: Config, journal: Journal, backends: Backends, feedback: FeedbackController
) -> FeedbackController:
    """Who labelled what existed before the first round: where models or a judge answer in the rounds, a world's truth.

    It stands in for people whose preferences are there already.
    """
    if backends.world is None or not isinstance(config.feedback, ModelFeedback | JudgeFeedback):
        return feedback
    return FeedbackController({CONSTRAINT: backends.labeller}, journal, seed=config.seed, source="world")


Estimate = Callable[[Sequence[SafetyLabels]], CostEstimate]


def _estimator_of(config: Config, feedback: FeedbackController) -> Estimate:
    """From labels to an estimate; where models answer, alone or with people, their part knows how."""
    if isinstance(feedback, MixedFeedbackController | ScoredFeedbackController):
        return feedback.estimate_cost
    return cost_estimator(config)


def cost_estimator(config: Config) -> _Estimator:
    return _Estimator(config)


class _Estimator:
    """The recipe's signal from safety labels to an estimate (paper.md §5)."""

    def __init__(self, config: Config) -> None:
        self._feedback = config.feedback
        self._cost_max = config.dual.cost_max

    def __call__(self, verdicts: Sequence[SafetyLabels]) -> CostEstimate:
        return estimate_cost(
            verdicts,
            labels_each=self._feedback.labels_each,
            cost_max=self._cost_max,
            mode=self._feedback.signal,
            constraint=verdicts[0].constraint,
        )


def dual_state(config: Config, backends: Backends, rounds: int) -> dual_rules.DualState:
    """First state of the multipliers. What the recipe leaves open comes from the world's oracle."""
    return dual_rules.DualState(tuple(_constraint_state(config, one, backends, rounds) for one in config.constraints))


def _constraint_state(
    config: Config, constraint: ConstraintConfig, backends: Backends, rounds: int
) -> dual_rules.ConstraintState:
    """A constraint's own settings over those of `dual`, over the oracle's rho."""
    own = {key: value for key, value in constraint if key != "name" and value is not None}
    settings = config.dual.model_copy(update=own)
    rho = settings.rho if settings.rho is not None else settings.upper and settings.upper / 2
    if rho is None:
        if backends.world is None:
            raise UserError("dual.rho must be given: without a world there is no oracle that states it")
        rho = backends.world.oracle.rho
    first = settings.first if settings.first is not None else rho
    lower = settings.rule.floor if isinstance(settings.rule, LogRule) else settings.lower
    try:
        return dual_rules.constraint_state(
            constraint.name, rho=rho, rule=dual_rule(config, settings, rho, first, rounds), first=first,
            threshold=settings.threshold, lower=lower, upper=settings.upper, dead_band=settings.dead_band,
        )  # fmt: skip
    except ValueError as error:
        raise UserError(f"dual: {error}") from error


def dual_rule(config: Config, settings: DualConfig, rho: float, first: float, rounds: int) -> dual_rules.Rule:
    """How the multiplier moves; the fixed rule never gets to move it."""
    match settings.rule:
        case ProjectedRule(curvature_cap=cap):
            return dual_rules.ProjectedFixed(rounds, first, settings.cost_max, config.beta if cap else None)
        case AnytimeRule(first_step=given, curvature_cap=cap):
            step = rho / (settings.cost_max + abs(settings.threshold)) if given is None else given
            return dual_rules.ProjectedAnytime(step, settings.cost_max, config.beta if cap else None)
        case NewtonRule(damping=damping):
            return dual_rules.DampedNewton(rounds, config.beta, settings.cost_max, damping)
        case LogRule(rate=rate):
            return dual_rules.LogMultiplier(rate)
        case PidRule(proportional=proportional, integral=integral, derivative=derivative):
            return dual_rules.Pid(proportional, integral, derivative)
        case FixedRule():
            return dual_rules.ProjectedFixed(rounds, first, settings.cost_max)


# --- work before the first round ----------------------------------------------------------------------------------


def _record_reference(journal: Journal, backends: Backends) -> None:
    def add() -> str:
        journal.add_version(backends.reference, "reference")
        return backends.reference.sha256

    if journal.once("reference", add) != backends.reference.sha256:
        raise UserError(
            f"run {journal.run_id} was started with another reference model: use the same one, or a new run folder"
        )


def _draw_pools(
    config: Config, journal: Journal, backends: Backends, rollout: RolloutController, online: bool
) -> dict[str, list[Response]]:
    """The baseline's answers by prompt, and the pool of proposals; drawn once, before the first round."""
    if not online:
        return {}
    proposal = proposal_of(config, len(backends.prompts))
    answers = _baseline_answers(config, journal, backends, rollout)
    if proposal.from_reference or backends.whiten:
        wide = Decoding(temperature=proposal.temperature, max_tokens=config.rollout.max_tokens)
        _pool(journal, backends, rollout, "proposal", backends.reference, proposal.pool, wide)
    by_prompt: dict[str, list[Response]] = {}
    for response in answers:
        by_prompt.setdefault(response.prompt.id, []).append(response)
    return by_prompt


def _baseline_answers(
    config: Config, journal: Journal, backends: Backends, rollout: RolloutController
) -> list[Response]:
    count = config.explore.baseline_answers
    if not callable(backends.baseline):
        version, decoding = backends.baseline
        return _pool(journal, backends, rollout, "baseline", version, count, decoding)
    given = backends.baseline(count)

    def add() -> int:
        answers = [answer for prompt in given.values() for answer in prompt]
        journal.add_samples("baseline", answers)
        return len(answers)

    journal.once("pool-baseline", add)
    return journal.samples(0, "baseline")


def _pool(
    journal: Journal,
    backends: Backends,
    rollout: RolloutController,
    purpose: str,
    version: PolicyVersion,
    count: int,
    decoding: Decoding,
) -> list[Response]:
    """`count` answers per prompt; the version is delivered only if they were not drawn before."""
    if f"pool-{purpose}" not in {entry.phase for entry in journal.phases(0)}:
        rollout.publish(version)
    return rollout.pool(purpose, backends.prompts, version, count, decoding)


def _offline_pairs(
    config: Config,
    journal: Journal,
    backends: Backends,
    rollout: RolloutController,
    feedback: FeedbackController,
    preferences: Preferences,
) -> None:
    """D_1: the pairs from before the first round, labelled like all others."""
    given = backends.offline

    def add() -> int:
        assert given is not None
        labelled = given(config.seed)
        answers = {answer.id: answer for item in labelled for answer in (item.pair.first, item.pair.second)}
        journal.add_samples("offline", list(answers.values()))
        journal.add_pairs(labelled, "offline")
        return len(labelled)

    if given is not None:
        journal.once("offline", add)
        labelled = [entry.labelled for entry in journal.pairs(0)]
    else:
        per_prompt = 2 * math.ceil(1.25 * config.offline.pairs / len(backends.prompts))
        narrow = Decoding(top_p=config.offline.top_p, max_tokens=config.rollout.max_tokens)
        answers = _pool(journal, backends, rollout, "offline", backends.reference, per_prompt, narrow)
        pairs = neighbours(answers, per_prompt, config.offline.pairs)
        if config.offline.extra:
            per_prompt = 2 * math.ceil(1.25 * config.offline.extra / len(backends.prompts))
            whole = Decoding(max_tokens=config.rollout.max_tokens)
            answers = _pool(journal, backends, rollout, "extra", backends.reference, per_prompt, whole)
            pairs += neighbours(answers, per_prompt, config.offline.extra, "0-extra-pair")
        journal.once("offline", lambda: journal.add_pair_questions(pairs))
        labelled = feedback.compare(pairs)
    preferences.extend(with_reward_share(labelled, config.offline.reward_share, config.seed))


def with_reward_share(labelled: Sequence[LabelledPair], share: float, seed: int) -> list[LabelledPair]:
    """The pairs, all but a share of them without their label for helpfulness; at least one keeps it."""
    if share >= 1.0 or not labelled:
        return list(labelled)
    kept = set(generator(seed, "reward-share").permutation(len(labelled))[: max(1, round(share * len(labelled)))])
    return [item if place in kept else replace(item, helpful=Verdict.ABSTAIN) for place, item in enumerate(labelled)]


def neighbours(answers: Sequence[Response], per_prompt: int, wanted: int, name: str = "0-pair") -> list[Pair]:
    """Pairs of answers that were drawn one after the other, prompts in turn, equal texts left out. At most `wanted`."""
    rows = [answers[start : start + per_prompt] for start in range(0, len(answers), per_prompt)]
    pairs = [
        Pair(f"{name}-{place}-{index}", row[place], row[place + 1])
        for place in range(0, per_prompt - 1, 2)
        for index, row in enumerate(rows)
        if row[place].token_ids != row[place + 1].token_ids
    ]
    return pairs[:wanted]


# --- scores of the compared methods ---------------------------------------------------------------------------------


def _scoring(
    config: Config,
    journal: Journal,
    backends: Backends,
    trainer: TrainerController,
    rollout: RolloutController,
    upper: float,
) -> ScoringController:
    """The scoring part. Nothing is fitted or drawn before a page asks for it."""
    plan = ScoringPlan(
        seed=config.seed,
        beta=config.beta,
        threshold=config.dual.threshold,
        reward_max=config.reward_max,
        cost_max=config.dual.cost_max,
        first=upper / 2 if config.dual.first is None else config.dual.first,
        upper=upper,
        rate=config.method.rate,
        answers=config.method.answers,
        bounded=not backends.whiten,
        ridge=config.explore.prior_sd**-2,
        decoding=Decoding(max_tokens=config.rollout.max_tokens),
        prior=None if backends.prior is None else tuple(backends.prior),
    )

    training = score_training(config, journal, backends, "page-models") if backends.whiten else None

    def features(labelled: Sequence[LabelledPair]) -> Features:
        if not backends.whiten:
            return trainer.features
        answers = [answer for item in labelled for answer in (item.pair.first, item.pair.second)]
        return with_constant(_whitened_on(answers, config, journal, backends, trainer))

    return ScoringController(plan, journal, backends.store, trainer, rollout, backends.prompts, features, training)


def score_training(config: Config, journal: Journal, backends: Backends, phase: str) -> ScorerTraining:
    """Reward and cost models that start as the reference; the feedback's and a page's are not the same ones."""
    return ScorerTraining(
        journal,
        backends.store,
        backends.reference,
        config.scorers,
        seed=config.seed,
        open_scorer=backends.own_scorer,
        phase=phase,
        recall=backends.recall,
    )


def _scored_feedback(
    config: Config, journal: Journal, backends: Backends, rollout: RolloutController
) -> ScoredFeedbackController:
    """Labels from reward and cost models."""
    settings = config.feedback
    assert isinstance(settings, ModelFeedback)
    return ScoredFeedbackController(
        _scored_labeller(config, settings, journal, backends, rollout),
        journal,
        seed=config.seed,
        constraint=CONSTRAINT,
        cost_max=config.dual.cost_max,
        settings=settings,
    )


def _mixed_feedback(
    config: Config, journal: Journal, backends: Backends, rollout: RolloutController
) -> MixedFeedbackController:
    """Labels from a model and people together; the model may be one that a world makes from its truth, with errors."""
    from pddpo_ray.loop.people_labelling import mixed_feedback

    settings = config.feedback
    assert isinstance(settings, MixedFeedback)
    if backends.further_labellers:
        raise UserError("feedback.kind=mixed takes one limit: leave `constraints` out, or use feedback.kind=people")
    if isinstance(settings.model, WorldScores):
        return mixed_feedback(CONSTRAINT, config, journal)
    model = ModelFeedback(reward=settings.model.reward, cost=settings.model.cost)
    return mixed_feedback(CONSTRAINT, config, journal, _scored_labeller(config, model, journal, backends, rollout))


def _scored_labeller(
    config: Config,
    settings: ModelFeedback,
    journal: Journal,
    backends: Backends,
    rollout: RolloutController,
) -> ScoredLabeller:
    """Reward and cost models. On a world they learn from labels of the reference's answers; elsewhere from the offline
    pairs and the safety labels that their answers came with; without such labels nothing but their mean sets the zero.
    """

    def data() -> tuple[Sequence[LabelledPair], Mapping[str, bool]]:
        if backends.world is None and backends.offline is not None:
            return backends.offline(config.seed), backends.offline_unsafe
        return labelled_reference_answers(
            journal,
            rollout,
            backends.prompts,
            backends.reference,
            backends.labeller,
            config.scorers,
            max_tokens=config.rollout.max_tokens,
            seed=config.seed,
        )

    training = score_training(config, journal, backends, "score-models")
    models = feedback_models(settings, training, data, backends.own_scorer, config.model.dtype)
    return ScoredLabeller(models.reward, models.cost, hard=settings.hard)


# --- exploration --------------------------------------------------------------------------------------------------


def _exploration(
    config: Config,
    journal: Journal,
    backends: Backends,
    trainer: TrainerController,
    dual: DualController,
    baseline: dict[str, list[Response]],
) -> ExplorationController:
    settings = config.explore
    features = _features(config, journal, backends, trainer)
    paper = config.algorithm == "o-pd-dpo-paper"

    def explorer(bonus: BonusKind) -> OptimisticExplorer:
        return OptimisticExplorer(
            features=features,
            baseline=baseline,
            beta=config.beta,
            multiplier=lambda: sum(dual.multipliers.values()),
            seed=config.seed,
            k=settings.scale,
            s0=settings.prior_sd,
            weight=settings.information,
            picks=settings.picks,
            bonus=bonus,
            comparator=settings.comparator,
            weights=settings.weights,
            proposal_weight=settings.proposal_weight,
            ess_floor=settings.min_ess,
            cost_bonus_scale=settings.cost_scale,
        )

    chooser, bonus = explorer("off" if paper else settings.bonus), explorer(settings.bonus) if paper else None
    return ExplorationController(
        chooser, journal, bonus, answers=backends.answers, keep=settings.keep, keep_random=settings.keep_random
    )


def _features(config: Config, journal: Journal, backends: Backends, trainer: TrainerController) -> Features:
    """Features of answers, whitened on the pool of proposals; the whitening is an artifact and never fitted again."""
    if not backends.whiten:
        return trainer.features
    return _whitened_on(None, config, journal, backends, trainer)


def _whitened_on(
    answers: Sequence[Response] | None,
    config: Config,
    journal: Journal,
    backends: Backends,
    trainer: TrainerController,
) -> Features:
    """Whitened features; the calibration answers are the pool of proposals unless others are given."""

    def fit() -> dict[str, str]:
        hidden = trainer.features(journal.samples(0, "proposal") if answers is None else answers)
        fitted = fit_whitening(hidden, config.explore.rank, seed=config.seed, norm_clip=config.explore.feature_clip)
        tensors = {"mean": fitted.mean, "projection": fitted.projection}
        path, sha256 = backends.store.write_tensors("whitening", tensors)
        return {"path": path, "sha256": sha256}

    place = journal.once("whitening", fit)
    tensors = backends.store.read_tensors(place["path"], place["sha256"])
    whitening = Whitening(tensors["mean"], tensors["projection"], config.explore.feature_clip)
    return whitened(trainer.features, whitening)
