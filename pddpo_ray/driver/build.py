"""From a resolved recipe and its backends to the parts that a method calls, the multipliers' first state among them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial

from pddpo_ray.algorithms.stages import AtOnce, Parts, Sizes
from pddpo_ray.backends.backends import Backends, sets_of_prompts
from pddpo_ray.certificates.groups import SETS, demand_groups
from pddpo_ray.certificates.margins import lowest_costs, margins
from pddpo_ray.config import Config, DualConfig, NewtonRule
from pddpo_ray.contracts import Due, Limits
from pddpo_ray.driver.cut_answers import watch_cut_answers
from pddpo_ray.driver.offline_setup import (
    answers_to_measure,
    calibration_answers,
    check_reference,
    draw_pools,
    offline_pairs,
    proposal_of,
    record_reference,
    record_sources,
)
from pddpo_ray.errors import UserError
from pddpo_ray.exploration.explorer import PRIOR_SD, OptimisticExplorer
from pddpo_ray.exploration.features import FEATURE_CLIP, Features, Whitening, fit_whitening, whitened, with_constant
from pddpo_ray.journal import Journal
from pddpo_ray.parts.dual_rules import first_state
from pddpo_ray.parts.dual_step import DualController, LocalDual
from pddpo_ray.parts.due_labels import DueLabels
from pddpo_ray.parts.exploring import ExplorationController
from pddpo_ray.parts.fitting import FitPlan, TrainerController
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.parts.label_estimates import LabelEstimates
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.limits import ANSWERS_EACH, LimitsController
from pddpo_ray.parts.people_measuring import people_of_limits
from pddpo_ray.parts.preferences import Preferences
from pddpo_ray.parts.production import UsersVerdicts, WithUsersPrompts
from pddpo_ray.parts.prompts import Prompts
from pddpo_ray.parts.reachable import note_reachable
from pddpo_ray.parts.rewards import RewardController
from pddpo_ray.parts.sampling import RolloutController
from pddpo_ray.records import Array, Decoding, LabelledPair, Prompt, Response
from pddpo_ray.registry import checked
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.scorecard.questions import Scorecard, wanted_of
from pddpo_ray.scorers.fits import OF_METHOD, training_of
from pddpo_ray.scorers.gate import check_limits, check_scorers, held_limits
from pddpo_ray.scorers.labellers import (
    ScoredFeedbackController,
    estimator_of,
    feedback_before,
    feedback_of,
)
from pddpo_ray.scorers.method_scores import ScoringController, ScoringPlan
from pddpo_ray.storage.merging import merge_versions
from pddpo_ray.theory import dual as dual_rules

logger = logging.getLogger(__name__)


def demand_startable(config: Config, backends: Backends) -> None:
    """Raises UserError for what this world or these files cannot give, before anything of the run is kept."""
    demand_groups(config, backends)
    aims = {} if config.dual.margin == 0.0 else margins(config, lowest_costs(backends))
    dual_state(config, backends, config.rounds, {name: margin.kept for name, margin in aims.items()})


def build_parts(config: Config, journal: Journal, backends: Backends, *, rounds: int, online: bool) -> Parts:
    """All parts, with the work before the first round done or read back. The method is ready to run."""
    trainer = TrainerController(
        backends.trainer,
        journal,
        fit_plan(config),
        seed=config.seed,
        constraints=cost_fits(backends.held_limits),
        baseline=lambda: journal.samples(purpose="baseline"),
    )
    decoding = Decoding(max_tokens=config.rollout.max_tokens)
    rollout = RolloutController(
        backends.engines,
        journal,
        seed=config.seed,
        decoding=decoding,
        reference=backends.reference,
        proposal=proposal_of(config, len(backends.prompts), len(backends.served), backends.answers),
        log_probs=trainer.log_probs,
        besides=wanted_of(config, backends) if config.scorecard_prompts else (),
        verify=DeliveryCheck(trainer.log_probs, backends.canaries, config.rollout.canary_tolerance, backends.tokenizer),
    )
    record_reference(journal, backends)
    if backends.measured_by:
        record_sources(journal, backends)
    check_reference(journal, backends, rollout)
    feedback = feedback_of(config, journal, backends, rollout)
    draw_pools(config, journal, backends, rollout, online)
    verdicts = UsersVerdicts(journal, backends.verdicts, config.production.verdicts)
    preferences = Preferences(journal, backends.store, config.compared, verdicts)
    before = feedback_before(config, journal, backends, feedback)
    offline_pairs(config, journal, backends, rollout, before, preferences)
    if isinstance(feedback, ScoredFeedbackController):
        by_prompt = backends.world is None
        check_scorers(config, journal, feedback.models, backends.offline_unsafe, by_prompt=by_prompt)
    check_limits(config, journal)
    groups = sets_of_prompts(backends)
    if config.certificate.mixtures and groups:
        journal.once(SETS, lambda: groups)
    kept = _margins(config, backends)
    journal.add_metrics({f"dual/margin_{name}": margin for name, margin in kept.items()})
    watch_cut_answers(config, journal, backends)
    first = answers_to_measure(config, journal, backends, online)
    rewards = None if backends.reward is None else RewardController(journal, backends.reward, seed=config.seed)
    if rewards is not None:
        rewards.measure_before(first)
    state = dual_state(config, backends, rounds, kept)
    owner = (backends.own_dual or LocalDual)(state)
    dual = DualController(owner, journal, partial(held_limits, config, journal))
    due = due_labels(config, journal, feedback, rounds)
    limits = _limits(config, backends, journal, trainer, rollout, feedback, due, dual, first)
    explorer = _exploration(config, journal, backends, trainer, dual, limits) if online else None
    if config.scorecard_prompts:
        card = Scorecard(config, journal, backends, trainer, rollout, feedback)
        card.before()
        journal.closing.append(card.close_round)
    return Parts(
        journal=journal,
        trainer=trainer,
        rollout=rollout,
        feedback=feedback,
        dual=dual,
        prompts=_prompts(config, journal, backends),
        preferences=preferences,
        limits=limits,
        explorer=explorer,
        scoring=_scoring(config, journal, backends, trainer, rollout, state.limits[0]),
        merge=partial(merge_versions, backends.store),
        rewards=rewards,
        due=due,
    )


def _prompts(config: Config, journal: Journal, backends: Backends) -> Prompts | WithUsersPrompts:
    """The recipe's own prompts, with its share of users' where they gave some."""
    own = Prompts(
        backends.prompts,
        journal,
        config.seed,
        backends.prior,
        backends.prompt_sets,
        independent=bool(config.certificate.mixtures),
    )
    share = config.production.share
    return WithUsersPrompts(own, backends.served, journal, share=share, seed=config.seed) if share else own


def due_labels(config: Config, journal: Journal, feedback: FeedbackController, rounds: int) -> Due:
    """Which labels a round takes: its own, or those that are there."""
    late = config.rounds_late
    return DueLabels(journal, feedback, rounds_late=late, rounds=rounds) if late else AtOnce()


def sizes_of(config: Config, rounds: int) -> Sizes:
    each = 1 if config.labelled else ANSWERS_EACH
    return Sizes(
        rounds=rounds,
        responses=config.feedback.responses // each,
        answers_each=each,
        labels_each=config.labels_each,
        pair_prompts=config.explore.prompts,
        beta=config.beta,
        method=config.method,
        settings=checked("methods", config.algorithm, config.method.settings, "method.settings"),
        reward_max=config.reward_max,
        cost_max=config.dual.cost_max,
    )


def fit_plan(config: Config) -> FitPlan:
    """Settings of all fits of a run."""
    alpha = config.explore.alpha if config.explore.loss == "xpo" else 0.0
    return FitPlan(config.trainer, config.ppo, skip_below=config.skip_below, rounds=config.rounds, alpha=alpha)


def _scoring(
    config: Config,
    journal: Journal,
    backends: Backends,
    trainer: TrainerController,
    rollout: RolloutController,
    first: dual_rules.LimitState,
) -> ScoringController:
    """The scoring part. Nothing is fitted or drawn before a method asks for it."""
    plan = ScoringPlan(
        seed=config.seed,
        beta=config.beta,
        threshold=first.limit,
        reward_max=config.reward_max,
        cost_max=config.dual.cost_max,
        upper=first.upper,
        answers=config.method.answers,
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
        return with_constant(_whitened_on(answers, config, journal, backends, trainer))

    return ScoringController(plan, journal, backends.store, trainer, rollout, backends.prompts, features, training)


def _exploration(
    config: Config,
    journal: Journal,
    backends: Backends,
    trainer: TrainerController,
    dual: DualController,
    limits: Limits,
) -> ExplorationController:
    settings = config.explore
    features = _features(config, journal, backends, trainer)
    # in logits: a share rises by at most a quarter per logit, so its range counts a quarter
    weights = {
        one.name: 0.0 if one.on_drift else 1.0 if one.by_comparisons else one.scale / 4.0
        for one in backends.held_limits
    }
    paper = config.algorithm == "o-pd-dpo-paper"
    own = checked("bonuses", settings.bonus, settings.settings, "explore.settings")

    def explorer(bonus: str) -> OptimisticExplorer:
        return OptimisticExplorer(
            features=features,
            baseline={},
            beta=lambda: limits.temperature,
            multiplier=lambda: sum(weights.get(name, 1.0) * value for name, value in dual.multipliers.items()),
            seed=config.seed,
            k=settings.scale,
            weight=settings.information,
            picks=settings.picks,
            bonus=bonus,
            bonus_settings=own if bonus == settings.bonus else None,
            comparator=settings.comparator,
            weights=settings.weights,
            cost_bonus_scale=settings.cost_scale,
            reward_weight=1.0 if backends.reward is None else backends.reward.span / 4.0,
        )

    chooser, bonus = explorer("off" if paper else settings.bonus), explorer(settings.bonus) if paper else None
    return ExplorationController(chooser, journal, bonus, answers=backends.answers, keep=settings.keep)


def _features(config: Config, journal: Journal, backends: Backends, trainer: TrainerController) -> Features:
    """Features of answers, hidden states whitened on the reference's answers; the whitening is an artifact and never
    fitted again."""
    if backends.features != "hidden":
        return trainer.features
    return _whitened_on(None, config, journal, backends, trainer)


def _whitened_on(
    answers: Sequence[Response] | None,
    config: Config,
    journal: Journal,
    backends: Backends,
    trainer: TrainerController,
) -> Features:
    """Whitened features; on the calibration answers unless others are given."""

    def fit() -> dict[str, str]:
        hidden = trainer.features(calibration_answers(journal) if answers is None else answers)
        fitted = fit_whitening(hidden, config.explore.rank, seed=config.seed)
        tensors = {"mean": fitted.mean, "projection": fitted.projection}
        path, sha256 = backends.store.write_tensors("whitening", tensors)
        return {"path": path, "sha256": sha256}

    stored = journal.once("whitening", fit)
    tensors = backends.store.read_tensors(stored["path"], stored["sha256"])
    whitening = Whitening(tensors["mean"], tensors["projection"], FEATURE_CLIP)
    return whitened(trainer.features, whitening)


def cost_fits(held: Sequence[HeldLimit]) -> int:
    """Cost fits of a round: one per limit that comparisons teach, and one for all limits on measured values.

    With a limit on the drift alone there is one too, which takes the reward policy as it is.
    """
    compared = sum(one.by_comparisons for one in held)
    return compared + (compared == 0 or any(one.by_values for one in held))


def _limits(
    config: Config,
    backends: Backends,
    journal: Journal,
    trainer: TrainerController,
    rollout: RolloutController,
    feedback: FeedbackController,
    due: Due,
    dual: DualController,
    first: Sequence[Response],
) -> LimitsController:
    """The part that holds the limits. Those that sources measure teach by the `first` answers before round 1."""
    window = config.method.window if config.algorithm == "pd-dpo-adalag" else None

    def drift(answers: Sequence[Response]) -> Array:
        """log policy / reference, both by the trainer."""
        writers = {one.version.number: one.version for one in journal.versions()}
        (writer,) = {answer.policy_version for answer in answers}
        return trainer.log_probs(writers[writer], answers) - trainer.log_probs(backends.reference, answers)

    def reference(purpose: str, prompts: Sequence[Prompt]) -> list[Response]:
        return rollout.pool(purpose, prompts, backends.reference, 1, Decoding(max_tokens=config.rollout.max_tokens))

    newton = any(isinstance(one.rule, NewtonRule) for one in config.duals.values())
    labels = LabelEstimates(
        [one.name for one in backends.held_limits if one.labelled], feedback, estimator_of(config, feedback),
        labels_each=config.labels_each, window=None if window is None else (journal, window),
    )  # fmt: skip
    limits = LimitsController(
        journal, backends.held_limits, backends.measure, dual, beta=config.beta, by_covariance=newton, drift=drift,
        log_probs=trainer.log_probs, reference=reference, seed=config.seed, due=due, labels=labels, window=window,
        people=people_of_limits(config, journal, backends.held_limits, sets_of_prompts(backends)),
    )  # fmt: skip
    if backends.measure is not None:
        limits.measure_before(first)
        chances = backends.prior or [1.0] * len(backends.prompts)
        prior = {one.token_ids: chance for one, chance in zip(backends.prompts, chances, strict=True)}
        note_reachable(journal, backends.held_limits, limits.before, prior)
    return limits


def _margins(config: Config, backends: Backends) -> dict[str, float]:
    """How far below each limit its multiplier aims, said in the log; {} where the recipe asks for no margin."""
    if config.dual.margin == 0.0:
        return {}
    by_name = margins(config, lowest_costs(backends))
    for name, margin in by_name.items():
        logger.info("%s", margin.line(name, config.thresholds[name]))
    return {name: margin.kept for name, margin in by_name.items()}


def dual_state(config: Config, backends: Backends, rounds: int, kept: Mapping[str, float]) -> dual_rules.DualState:
    """First state of the multipliers, with these margins. What the recipe leaves open comes from the world's oracle.

    Bounds and first value are prices, in units of the reward per range of a measure, or per logit of the paper's cost.
    """
    states = []
    for one in backends.held_limits:
        settings, limit = config.duals[one.name], one.stated.limit
        rho = _rho(settings, backends)
        part = rho if one.labelled else rho / len(backends.held_limits)
        # a drift has no upper end: what the limit allows stands for it
        low, high = (0.0, 0.0) if one.labelled else one.cost_range or (0.0, limit.cost_limit)
        state = first_state(
            settings,
            beta=config.beta,
            rho=rho,
            first=min(part, settings.upper or math.inf) if settings.first is None else settings.first,  # in its bounds
            rounds=rounds,
            bound=config.dual.cost_max if one.labelled else 0.5,
            rate=limit.is_share and not one.labelled,
            name=one.name,
            limit=limit.cost_limit,
            scale=one.scale,
            centre=(low + high) / 2.0,
            margin=kept.get(one.name, 0.0),
            kl=one.on_drift,
        )
        states.append(state)
    return dual_rules.DualState(tuple(states))


def _rho(settings: DualConfig, backends: Backends) -> float:
    rho = settings.rho if settings.rho is not None else settings.upper and settings.upper / 2
    if rho is None:
        if backends.world is None:
            raise UserError("dual.rho must be given: without a world there is no oracle that states it")
        rho = backends.world.oracle.rho
    return rho
