"""The multipliers of several limits, moved together: one step of all of them per round, kept in the journal."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pddpo_ray.journal import Journal
from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.dual import DualStep, Fixed, LogMultiplier
from pddpo_ray.theory.matrix_dual import (
    CostEstimates,
    LimitState,
    NewtonRule,
    apart_step,
    message_of,
    newton_step,
    recent_covariance,
    temperature_of,
)

logger = logging.getLogger(__name__)

PHASE = "joint"
JointRule = NewtonRule | LogMultiplier | Fixed


class JointDual:
    """Satisfies dual_step.DualOwner. `step` moves all multipliers; `ascend` then says what it did to one of them.

    The state is the journal's: a restarted run reads the multipliers of its last finished step.
    """

    def __init__(
        self,
        journal: Journal,
        first: Sequence[LimitState],
        rule: JointRule,
        *,
        beta: float,
        warmup_rounds: int = 0,
        held: Mapping[str, str] | None = None,
    ) -> None:
        """`held`: limits whose multipliers stay where they are, each with the reason."""
        self._journal, self._first, self._rule, self._warmup = journal, tuple(first), rule, warmup_rounds
        self._beta, self._held = beta, dict(held or {})
        self._steps: dict[int, dict[str, Any]] = {
            entry.round: entry.payload for entry in journal.phases(like=PHASE) if entry.round < journal.next_round
        }

    def restore(self, estimates: Iterable[tuple[int, CostEstimate]]) -> None:
        """Nothing to replay: the steps themselves are in the journal."""

    @property
    def by_covariance(self) -> bool:
        """Whether a step divides by the covariance of the costs."""
        return isinstance(self._rule, NewtonRule)

    def multipliers(self, round_: int) -> Mapping[str, float]:
        return {state.name: state.multiplier for state in self.states(round_)}

    def states(self, round_: int) -> tuple[LimitState, ...]:
        """All limits' states that govern a round: after the last step of an earlier round."""
        before = [number for number in self._steps if number < round_]
        if not before:
            return self._first
        stored = self._steps[max(before)]["states"]
        return tuple(replace(state, **stored[state.name]) for state in self._first)

    def temperature(self, round_: int) -> float:
        """beta + mu of a round's stages; beta where no limit is on the drift."""
        return temperature_of(self.states(round_), self._beta)

    def step(self, estimates: CostEstimates) -> None:
        """The round's step of all multipliers at once."""
        round_ = self._journal.round
        self._steps[round_] = self._journal.once(PHASE, lambda: self._step(round_, estimates))
        for line in self._steps[round_]["moved"]:
            logger.info("round %d: multiplier of %s", round_, line)

    def ascend(self, round_: int, estimate: CostEstimate) -> DualStep:
        """What the round's joint step did to the estimate's multiplier."""
        before, after = (self.states(number) for number in (round_, round_ + 1))
        index = [state.name for state in before].index(estimate.constraint)
        message = None if isinstance(self._rule, Fixed) else message_of(after[index])
        if round_ <= self._warmup:
            message = "the multiplier stands still while the policy warms up"
        message = self._held.get(estimate.constraint, message)
        old, new = before[index], after[index]
        return DualStep(old.name, estimate, old.aim, old.multiplier, new.multiplier, 0.0, message)

    def _step(self, round_: int, estimates: CostEstimates) -> dict[str, Any]:
        states = self.states(round_)
        earlier = [number for number in sorted(self._steps) if number < round_]
        covariances = [np.array(self._steps[number]["covariance"]) for number in earlier]
        temperatures = [self.temperature(number) for number in (*earlier, round_)]
        recent = recent_covariance([*covariances, estimates.covariance], temperatures, states)
        moved: list[str] = []
        if round_ > self._warmup:
            match self._rule:
                case NewtonRule():
                    recent_estimates = replace(estimates, covariance=recent)
                    states, record = newton_step(states, recent_estimates, self._rule, held=self._held)
                    moved = record.log_lines()
                case LogMultiplier(rate=rate):
                    states = apart_step(states, estimates, rate, held=self._held)
        fields = ("multiplier", "rounds_at_upper", "rounds_at_zero")
        return {
            "states": {state.name: {name: getattr(state, name) for name in fields} for state in states},
            "moved": moved,
            "means": np.asarray(estimates.means).tolist(),
            "standard_errors": np.asarray(estimates.standard_errors).tolist(),
            "covariance": np.asarray(estimates.covariance).tolist(),
        }
