"""What the methods share: the parts, the sizes of a round, and the two stages' objectives (paper.md §2, §3, §9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from pddpo_ray.contracts import (
    Dual,
    Due,
    Explorer,
    Feedback,
    Limits,
    Preferences,
    Prompts,
    Rewards,
    Rollout,
    Trainer,
)
from pddpo_ray.journal import Journal
from pddpo_ray.records import Objective, Pair, PairRow, PolicyVersion, Response
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature


@dataclass(frozen=True)
class Parts:
    """Everything that a method calls. Offline methods have no explorer."""

    journal: Journal
    trainer: Trainer
    rollout: Rollout
    feedback: Feedback
    dual: Dual
    prompts: Prompts
    preferences: Preferences
    limits: Limits
    explorer: Explorer | None = None
    own: Any = None
    """What the method brings itself (`Method.parts`)."""
    rewards: Rewards | None = None
    """A computed reward (`reward:`); None: comparisons teach it."""
    due: Due | None = None
    """Which comparisons a round takes where they may be late (`feedback.rounds_late`); None: its own."""
    prepare: Callable[[], None] = lambda: None
    """A method's first line: what happens once before round 1 (reference, pools, offline pairs, first measurements)."""

    @property
    def exploration(self) -> Explorer:
        if self.explorer is None:
            raise ValueError("this method explores; it needs an explorer")
        return self.explorer


Settings = TypeVar("Settings", bound=BaseModel)


@dataclass(frozen=True)
class Sizes:
    """K, N_ce, M_ce, the prompts per round that get compared, and beta."""

    rounds: int
    responses: int
    """Prompts per round that get answers for the estimates."""
    labels_each: int
    pair_prompts: int
    beta: float
    settings: BaseModel | None = None
    """The method's settings, validated by their class; None: it has none."""
    answers_each: int = 1
    """Answers to each of those prompts."""
    reward_max: float = 2.0
    cost_max: float = 2.0
    """Bounds of scores in a table's policy class; language models have none."""

    def own(self, settings: type[Settings]) -> Settings:
        """The method's own settings, which are of this class."""
        assert isinstance(self.settings, settings)
        return self.settings


def reward_objective(reference: PolicyVersion, beta: float) -> Objective:
    """Standard DPO against the reference (paper.md §2)."""
    return Objective("reward", reference, beta)


def fit_reward(parts: Parts, reference: PolicyVersion) -> PolicyVersion:
    """A round's first stage: comparisons teach the reward, or measured differences of a computed one."""
    return _reward_stage(parts.trainer.fit, parts, reference, parts.limits.temperature)


Done = TypeVar("Done")


def _reward_stage(
    work: Callable[[Objective, Sequence[PairRow]], Done], parts: Parts, reference: PolicyVersion, beta: float
) -> Done:
    if parts.rewards is not None:
        return work(*parts.rewards.stage(reference, beta))
    return work(reward_objective(reference, beta), parts.preferences.reward)


def reward_fits(parts: Parts, reference: PolicyVersion) -> Callable[[], PolicyVersion]:
    """Returns the reward policy of each round under fixed preferences: one fit for all rounds, made now.

    A limit on the drift moves the temperature; then every round has its own fit.
    """
    if parts.limits.on_drift:
        return lambda: fit_reward(parts, reference)
    version = fit_reward(parts, reference)
    return lambda: version


def begin_reward_fit(parts: Parts, reference: PolicyVersion) -> None:
    """Starts the next round's reward fit early: it needs no multiplier, unless a limit on the drift has one."""
    if not parts.limits.on_drift:
        _reward_stage(parts.trainer.begin, parts, reference, parts.limits.temperature)


def lagrangian_objective(base: PolicyVersion, multiplier: float, beta: float) -> Objective:
    """DPO against the last stage's policy at temperature beta/multiplier, the cheaper answer chosen (paper.md §3).

    At multiplier 0 the minimiser is the base itself; the trainer then takes it without a fit (paper.md §6).
    """
    return Objective("cost", base, cost_temperature(beta, multiplier), multiplier)


def single_objective(
    reference: PolicyVersion, beta: float, margins: Sequence[float] = (), score_max: float | None = None
) -> Objective:
    """Plain DPO against the reference whose result is the round's policy: one stage, no reward policy, no multiplier.

    `chosen` is raised whatever it was chosen for; margins are part of the loss. `score_max` bounds a table's scores.
    """
    return Objective("cost", reference, beta, None, tuple(margins), score_max=score_max)


def observe(parts: Parts, policy: PolicyVersion, sizes: Sizes, multiplier: float | None = None) -> None:
    """Verifies the policy, estimates its costs and journals them; no multiplier moves."""
    parts.rollout.publish(policy)
    answers = parts.rollout.sample(parts.prompts.draw(sizes.responses), policy, each=sizes.answers_each)
    parts.limits.open(answers)
    parts.limits.observe(answers, multiplier)


def learn_from(parts: Parts, pairs: Sequence[Pair]) -> None:
    """Has the round's pairs compared and adds them to the preferences, earlier rounds' when their labels arrive; a
    computed reward and measured limits measure the pairs' answers too."""
    if parts.rewards is not None:
        parts.rewards.measure_pairs(pairs)
    parts.limits.measure_pairs(pairs)
    for due_pairs in [pairs] if parts.due is None else parts.due.pairs(pairs):
        parts.preferences.extend(parts.feedback.compare(due_pairs))


def neighbours_of(answers: Sequence[Response], per_prompt: int) -> list[Pair]:
    """Pairs of answers that were drawn one after the other, equal texts left out. Answers come prompt by prompt."""
    return [
        Pair(f"pseudo-{index}", answers[index], answers[index + 1])
        for start in range(0, len(answers), per_prompt)
        for index in range(start, start + per_prompt - 1, 2)
        if answers[index].token_ids != answers[index + 1].token_ids
    ]
