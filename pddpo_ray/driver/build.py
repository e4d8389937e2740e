"""Builds the parts that a method calls, with the multipliers' first state, from a resolved recipe and its backends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from pddpo_ray.algorithms.stages import Parts, Sizes
from pddpo_ray.backends.backends import Backends, sets_of_prompts
from pddpo_ray.certificates.groups import demand_groups
from pddpo_ray.certificates.margins import Margin, lowest_costs, margins
from pddpo_ray.config import Config, DualConfig, NewtonRule
from pddpo_ray.config.sections.method import AdalagSettings
from pddpo_ray.contracts import Due
from pddpo_ray.driver.offline_setup import (
    calibration_answers,
    proposal_of,
)
from pddpo_ray.errors import UserError
from pddpo_ray.exploration.explorer import OptimisticExplorer
from pddpo_ray.exploration.features import FEATURE_CLIP, Features, Whitening, fit_whitening, whitened
from pddpo_ray.journal import Journal
from pddpo_ray.parts.dual_rules import first_state
from pddpo_ray.parts.dual_step import DualController, LocalDual
from pddpo_ray.parts.due_labels import DueLabels
from pddpo_ray.parts.exploring import ExplorationController
from pddpo_ray.parts.fitting import FitPlan, TrainerController
from pddpo_ray.parts.held_limit import HeldLimit, answers_each
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.limits import LimitsController
from pddpo_ray.parts.people_measuring import people_of_limits
from pddpo_ray.parts.preferences import Preferences
from pddpo_ray.parts.production import UsersVerdicts, WithUsersPrompts
from pddpo_ray.parts.prompts import Prompts
from pddpo_ray.parts.rewards import RewardController
from pddpo_ray.parts.sampling import RolloutController
from pddpo_ray.records import Array, Decoding, Prompt, Response
from pddpo_ray.registry import checked, code_of
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.scorecard.questions import Scorecard, wanted_of
from pddpo_ray.scorers.gate import held_limits
from pddpo_ray.scorers.labellers import (
    Labelling,
    feedback_of,
    labels_before,
    measure_of,
    unsafe_chance,
)
from pddpo_ray.theory.multipliers import dual as dual_rules


def demand_startable(config: Config, backends: Backends) -> None:
    """Raises UserError for what this world or these files cannot give, before anything of the run is kept."""
    demand_groups(config, backends)
    dual_state(config, backends, config.rounds, _margins(config, backends))


@dataclass(frozen=True)
class BuiltParts(Parts):
    """The parts of a run before anything is asked, fitted or drawn: `prepare` makes them ready."""

    trainer: TrainerController
    rollout: RolloutController
    feedback: FeedbackController
    preferences: Preferences
    limits: LimitsController
    rewards: RewardController | None = None
    explorer: ExplorationController | None = None
    labels_before: FeedbackController | None = None
    """Who labels the pairs from before round 1, where that is somebody else."""
    margins: Mapping[str, Margin] = field(default_factory=dict)
    """How far below each limit its multiplier aims."""
    whitened: WhitenedFeatures | None = None
    """The explorer's features; None: they need no fit."""
    scorecard: Scorecard | None = None


def build_parts(config: Config, journal: Journal, backends: Backends, *, rounds: int, online: bool) -> BuiltParts:
    """Builds all parts from the recipe and the journal. Only reads; asks, fits and draws nothing."""
    trainer = TrainerController(
        backends.trainer,
        journal,
        fit_plan(config),
        seed=config.seed,
        constraints=cost_fits(backends.held_limits),
        baseline=lambda: journal.samples(purpose="baseline"),
    )
    rollout = RolloutController(
        backends.engines,
        journal,
        seed=config.seed,
        decoding=Decoding(max_tokens=config.rollout.max_tokens),
        reference=backends.reference,
        proposal=proposal_of(config, len(backends.prompts), len(backends.served), backends.answers),
        log_probs=trainer.log_probs,
        besides=wanted_of(config, backends) if config.scorecard_prompts else (),
        verify=DeliveryCheck(trainer.log_probs, backends.canaries, config.rollout.canary_tolerance, backends.tokenizer),
    )
    feedback = feedback_of(Labelling(config, journal, backends, rollout))
    verdicts = UsersVerdicts(journal, backends.verdicts, config.production.verdicts)
    aims = _margins(config, backends)
    state = dual_state(config, backends, rounds, aims)
    owner = (backends.own_dual or LocalDual)(state)
    dual = DualController(owner, journal, partial(held_limits, config, journal))
    due = due_labels(config, journal, feedback, rounds)
    limits = _limits(config, backends, journal, trainer, rollout, feedback, due, dual)
    hidden = online and backends.features == "hidden"
    whitened = WhitenedFeatures(None, config, journal, backends, trainer) if hidden else None
    watched = config.scorecard_prompts > 0
    scorecard = Scorecard(config, journal, backends, trainer, rollout, feedback) if watched else None
    parts = BuiltParts(
        journal=journal,
        trainer=trainer,
        rollout=rollout,
        feedback=feedback,
        dual=dual,
        prompts=_prompts(config, journal, backends),
        preferences=Preferences(journal, config.compared, verdicts),
        limits=limits,
        rewards=_rewards(config, journal, backends),
        due=due,
        labels_before=labels_before(config, journal, backends),
        margins=aims,
        whitened=whitened,
        scorecard=scorecard,
    )
    make_own = code_of("methods", config.algorithm, "parts")
    if make_own is not None:
        parts = replace(parts, own=make_own(config, backends, parts, state.limits[0]))
    if not online:
        return parts
    if isinstance(parts.own, ExplorationController):
        return replace(parts, explorer=parts.own)
    explorer = explorer_of(config, backends, parts, config.explore.bonus)
    return replace(parts, explorer=ExplorationController(explorer, journal, keep=config.explore.keep))


def _prompts(config: Config, journal: Journal, backends: Backends) -> Prompts | WithUsersPrompts:
    """The recipe's own prompts, with its share of users' where they gave some."""
    prompts = Prompts(
        backends.prompts,
        journal,
        config.seed,
        backends.prior,
        backends.prompt_sets,
        independent=bool(config.certificate.mixtures),
    )
    share = config.production.share
    return WithUsersPrompts(prompts, backends.served, journal, share=share, seed=config.seed) if share else prompts


def due_labels(config: Config, journal: Journal, feedback: FeedbackController, rounds: int) -> Due | None:
    """The part for late labels; None: a round takes its own."""
    late = config.rounds_late
    return DueLabels(journal, feedback, rounds_late=late, rounds=rounds) if late else None


def sizes_of(config: Config, rounds: int) -> Sizes:
    each = answers_each(config.stated)
    return Sizes(
        rounds=rounds,
        responses=config.feedback.responses // each,
        answers_each=each,
        labels_each=config.labels_each,
        pair_prompts=config.explore.prompts,
        beta=config.beta,
        settings=config.method_settings,
        reward_max=config.reward_max,
        cost_max=config.dual.cost_max,
    )


def fit_plan(config: Config) -> FitPlan:
    """Settings of all fits of a run."""
    alpha = config.explore.alpha if config.explore.loss == "xpo" else 0.0
    return FitPlan(config.trainer, skip_below=config.skip_below, rounds=config.rounds, alpha=alpha)


def explorer_of(config: Config, backends: Backends, parts: BuiltParts, bonus: str) -> OptimisticExplorer:
    """What chooses a round's pairs, by this bonus."""
    settings, limits, dual = config.explore, parts.limits, parts.dual
    # in logits: a share rises by at most a quarter per logit, so its range counts a quarter
    weights = {
        limit.name: 0.0 if limit.on_drift else 1.0 if limit.stated.by_comparisons else limit.scale / 4.0
        for limit in backends.held_limits
    }
    bonus_settings = checked("bonuses", settings.bonus, settings.settings, "explore.settings")
    return OptimisticExplorer(
        features=parts.whitened or parts.trainer.features,
        baseline={},
        beta=lambda: limits.temperature,
        multiplier=lambda: sum(weights.get(name, 1.0) * value for name, value in dual.multipliers.items()),
        seed=config.seed,
        k=settings.scale,
        weight=settings.information,
        picks=settings.picks,
        bonus=bonus,
        bonus_settings=bonus_settings if bonus == settings.bonus else None,
        comparator=settings.comparator,
        weights=settings.weights,
        cost_bonus_scale=settings.cost_scale,
        reward_weight=1.0 if backends.reward is None else backends.reward.span / 4.0,
    )


class WhitenedFeatures:
    """Hidden states whitened on the calibration answers, or on others that are given.

    The whitening is fitted at first use or by `prepare`; it is an artifact and never fitted again.
    """

    def __init__(
        self,
        answers: Sequence[Response] | None,
        config: Config,
        journal: Journal,
        backends: Backends,
        trainer: TrainerController,
    ) -> None:
        self._answers, self._journal, self._store, self._trainer = answers, journal, backends.store, trainer
        self._rank, self._seed = config.explore.rank, config.seed

    def __call__(self, responses: Sequence[Response]) -> Array:
        return self._whitened(responses)

    def prepare(self) -> None:
        """Fits the whitening, or reads it back."""
        _ = self._whitened

    @cached_property
    def _whitened(self) -> Features:
        stored = self._journal.once("whitening", self._fit)
        tensors = self._store.read_tensors(stored["path"], stored["sha256"])
        whitening = Whitening(tensors["mean"], tensors["projection"], FEATURE_CLIP)
        return whitened(self._trainer.features, whitening)

    def _fit(self) -> dict[str, str]:
        answers = calibration_answers(self._journal) if self._answers is None else self._answers
        fitted = fit_whitening(self._trainer.features(answers), self._rank, seed=self._seed)
        path, sha256 = self._store.write_tensors("whitening", {"mean": fitted.mean, "projection": fitted.projection})
        return {"path": path, "sha256": sha256}


def cost_fits(held_limits: Sequence[HeldLimit]) -> int:
    """Cost fits of a round: one per limit that comparisons teach, and one for all limits on measured values.

    With a limit on the drift alone there is one too, which takes the reward policy as it is.
    """
    count = sum(limit.stated.by_comparisons for limit in held_limits)
    return count + (count == 0 or any(limit.by_values for limit in held_limits))


def _limits(
    config: Config,
    backends: Backends,
    journal: Journal,
    trainer: TrainerController,
    rollout: RolloutController,
    feedback: FeedbackController,
    due: Due | None,
    dual: DualController,
) -> LimitsController:
    """The part that holds the limits."""
    window = config.method_settings.window if isinstance(config.method_settings, AdalagSettings) else None

    def drift(answers: Sequence[Response]) -> Array:
        """log policy / reference, both by the trainer."""
        writers = {entry.version.number: entry.version for entry in journal.versions()}
        (writer,) = {answer.policy_version for answer in answers}
        return trainer.log_probs(writers[writer], answers) - trainer.log_probs(backends.reference, answers)

    def reference(purpose: str, prompts: Sequence[Prompt]) -> list[Response]:
        return rollout.pool(purpose, prompts, backends.reference, 1, Decoding(max_tokens=config.rollout.max_tokens))

    newton = any(isinstance(settings.rule, NewtonRule) for settings in config.duals.values())
    risk = unsafe_chance(feedback.models)
    return LimitsController(
        journal, backends.held_limits, measure_of(config, backends, feedback), dual, beta=config.beta,
        by_covariance=newton, drift=drift, log_probs=trainer.log_probs, reference=reference, seed=config.seed,
        due=due, feedback=feedback, window=window, newest=config.trainer.measured == "newest",
        people=people_of_limits(config, journal, backends.held_limits, sets_of_prompts(backends), risk),
    )  # fmt: skip


def _rewards(config: Config, journal: Journal, backends: Backends) -> RewardController | None:
    """The part that measures a computed reward."""
    newest = config.trainer.measured == "newest"
    reward = backends.reward
    return None if reward is None else RewardController(journal, reward, seed=config.seed, newest=newest)


def _margins(config: Config, backends: Backends) -> dict[str, Margin]:
    """How far below each limit its multiplier aims; {} where the recipe asks for no margin."""
    return margins(config, lowest_costs(backends)) if config.dual.margin else {}


def dual_state(config: Config, backends: Backends, rounds: int, aims: Mapping[str, Margin]) -> dual_rules.DualState:
    """First state of the multipliers, with these margins. What the recipe leaves open comes from the world's oracle.

    Bounds and first value are prices, in units of the reward per range of a measure, or per logit of the paper's cost.
    """
    states = []
    for held_limit in backends.held_limits:
        settings, limit, margin = config.duals[held_limit.name], held_limit.stated.limit, aims.get(held_limit.name)
        rho = _rho(settings, backends)
        part = rho if held_limit.stated.labelled else rho / len(backends.held_limits)
        state = first_state(
            settings,
            beta=config.beta,
            rho=rho,
            first=min(part, settings.upper or math.inf) if settings.first is None else settings.first,  # in its bounds
            rounds=rounds,
            bound=config.dual.cost_max if held_limit.stated.labelled else 0.5,
            rate=limit.is_share and not held_limit.stated.labelled,
            name=held_limit.name,
            limit=limit.cost_limit,
            scale=held_limit.scale,
            centre=held_limit.centre,
            margin=margin.kept if margin else 0.0,
            test=margin.test if margin else None,
            kl=held_limit.on_drift,
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
