"""All parts of a cell together, its multiplier and its limit among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from lab.studies.comparison.ground import BETA, LIMIT, REFERENCE, Ground, cells
from lab.studies.comparison.parts import Chooser, Draws, Known, Rounds, Scores, Solved, Truth
from lab.studies.limits.run import covariance
from lab.studies.limits.worlds import Indices, Twin
from lab.studies.limits.worlds import Labels as Measured
from pddpo_ray.algorithms.stages import Parts
from pddpo_ray.contracts import Explorer, Feedback, Trainer
from pddpo_ray.journal import Journal
from pddpo_ray.limits.reading import FEEDBACK, stated_limits
from pddpo_ray.parts.dual_step import ascend_all
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.parts.limits import LimitsController
from pddpo_ray.records import (
    HARM,
    Array,
    CostEstimate,
    Pair,
    PolicyVersion,
    Response,
    Verdict,
)
from pddpo_ray.theory.estimates.cost_estimate import mean_with_error
from pddpo_ray.theory.multipliers.dual import DampedNewton, DualState, ascend


class OneDual:
    """Satisfies contracts.Dual: one multiplier by one of the rules of `theory.dual`."""

    def __init__(self, state: DualState) -> None:
        self._state = state
        self.message = None

    @property
    def multiplier(self) -> float:
        return self._state.multiplier

    @property
    def multipliers(self) -> dict[str, float]:
        return {"cost": self.multiplier}

    def step(self, estimates: Sequence[CostEstimate], covariance: Array | None = None) -> dict[str, float]:
        for estimate in estimates:
            self._state, _ = ascend(self._state, estimate)
        return self.multipliers

    def observe(
        self, estimates: Sequence[CostEstimate], *, multiplier: float | None = None, following: float | None = None
    ) -> None:
        """Nobody reads it."""


class RateLimit:
    """Satisfies contracts.Limits: one rate, its stage the regression on measured values, its multiplier by the joint
    Newton step, or by adaLag's rule on the newest `window` answers."""

    on_drift, temperature = False, BETA

    def __init__(
        self, ground: Ground, trainer: Solved, truth: Truth, state: DualState, window: int
    ) -> None:  # fmt: skip
        self._trainer, self._truth, self._state, self._window = trainer, truth, state, window
        self._learner, self._asked = Twin(ground.policies), set[str]()
        self._labels = Measured(ground.oracle.cost.shape, 1)
        self.base = self._policy = REFERENCE
        """The reward policy of the round, and the round's policy."""
        self.answered = list[tuple[Indices, Indices, Array]]()
        """Prompts, answers and labels of each round's estimate. [n] each"""

    @property
    def multiplier(self) -> float:
        return self._state.multiplier

    def stages(self, trainer: Trainer, preferences: object, policy: PolicyVersion) -> PolicyVersion:
        self.base = policy
        scores = self._learner.measured(self._labels, np.array([self.multiplier]))
        self._policy = self._trainer.tilted(policy, -scores / BETA)
        return self._policy

    def measure_pairs(self, pairs: Sequence[Pair]) -> None:
        """Both answers of each pair; one of the baseline that was in a pair before is not asked about again."""
        answers = {one.id: one for pair in pairs for one in (pair.first, pair.second) if one.id not in self._asked}
        self._asked |= set(answers)
        self._measure(list(answers.values()))

    def open(self, answers: Sequence[Response]) -> None:
        """The truth answers at once."""

    def estimates(self, answers: Sequence[Response]) -> list[CostEstimate]:
        """Methods that ask for them have a limit by labels."""
        raise NotImplementedError

    def observe(self, answers: Sequence[Response], multiplier: float | None = None) -> None:
        raise NotImplementedError

    def step(self, answers: Sequence[Response]) -> None:
        drawn = self._measure(answers)
        prompts, chosen = cells(answers)
        self.answered.append((prompts, chosen, drawn))
        (limit,) = self._state.limits
        newton = isinstance(limit.rule, DampedNewton)
        seen = drawn if newton else np.concatenate([values for *_, values in self.answered])[-self._window :]
        estimate = CostEstimate(float(seen.mean()), 0.0, len(seen), 1, "unsafe_rate", limit.name)
        covariance = self._covariance(prompts, chosen, drawn[:, None]) if newton else None
        self._state, _ = ascend_all(self._state, [estimate], covariance)

    def _covariance(self, prompts: Indices, answers: Indices, drawn: Array) -> Array:
        """Of the chances within prompts; what the policy had learned tells the noise of labels, as in runs."""
        base, policy = (self._trainer.tables[one.number][prompts, answers] for one in (self.base, self._policy))
        learned, multipliers = BETA * (base - policy), np.array([self.multiplier])
        return covariance(self._labels, prompts, answers, drawn, multipliers, learned)

    def _measure(self, answers: Sequence[Response]) -> Array:
        drawn = self._truth.unsafe(answers)
        self._labels.measure(*cells(answers), drawn[:, None])
        return drawn


class RateByLabels(LimitsController):
    """One rate from a label of each answer, which no journal keeps; nothing was asked where nobody reads it."""

    def _estimate_costs(self, answers: Sequence[Response]) -> tuple[list[CostEstimate], Array]:
        labelled = self._feedback.safety(answers, 1, HARM)
        unsafe = np.array([one.labels[0] is Verdict.UNSAFE for one in labelled], dtype=np.float64)
        value, error = mean_with_error(unsafe) if len(unsafe) > 1 else (0.0, 0.0)
        return [CostEstimate(value, error, len(unsafe), 1, "unsafe_rate")], np.zeros((1, 1))


def parts_of(
    journal: Rounds, trainer: Solved, draws: Draws, truth: Truth, known: Known, dual: OneDual,
    scores: Scores, limit: RateLimit | None, explorer: Chooser | None,
) -> Parts:  # fmt: skip
    """The methods' parts. The journal is light: the methods ask it for rounds and policies alone."""
    stated = stated_limits({"limits": {HARM: {"rate": {"world": HARM}, "at_most": f"{100 * LIMIT} %"}}}, "bench")
    nothing = cast(Any, None)
    held = [
        HeldLimit(replace(one, source=replace(one.source, kind=FEEDBACK, labeller="world")), 1.0, {}) for one in stated
    ]
    by_labels = RateByLabels(
        cast(Journal, journal), held, nothing, dual, beta=BETA, by_covariance=False, drift=nothing,
        log_probs=nothing, reference=nothing, seed=0, feedback=cast(Feedback, truth),
    )  # fmt: skip
    return Parts(
        journal=cast(Journal, journal), trainer=cast(Trainer, trainer), rollout=draws, feedback=cast(Feedback, truth),
        dual=dual, prompts=draws, preferences=known, explorer=cast(Explorer, explorer),
        own=scores, limits=limit or by_labels,
    )  # fmt: skip
