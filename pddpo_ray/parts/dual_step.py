"""The dual variable as the methods see it: the multipliers of this round, and one step of all of them.

`multipliers` are those that govern the round being worked on; a step changes them for the next round. So a round that
is done again after a restart sees the same multipliers as the first time, whether its step was already taken or not.
The journal has every step with what it was taken from; the owner of the multipliers is restored by taking them again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.records import Array, CostEstimate
from pddpo_ray.theory.estimates.estimate_interval import interval
from pddpo_ray.theory.multipliers.dual import DampedNewton, DualState, DualStep, ascend
from pddpo_ray.theory.multipliers.matrix_dual import COVARIANCE_ROUNDS, newton_step, recent_covariance, temperature_of

logger = logging.getLogger(__name__)

PHASE = "dual"


@dataclass(frozen=True, eq=False)
class JointStep:
    """One step of all limits: a record for each, and lines on how Newton's step divides among them."""

    steps: tuple[DualStep, ...]
    lines: tuple[str, ...] = ()


def ascend_all(
    state: DualState,
    estimates: Sequence[CostEstimate],
    covariance: Array | None = None,
    frozen: Mapping[str, str] | None = None,
) -> tuple[DualState, JointStep]:
    """One step of every limit that has an estimate. Those that are `frozen` stay, with the reason as their message.

    `covariance` [I, I] is that of the costs of the same answers within prompts, in the order of the limits: limits with
    the rule `DampedNewton` then move together, by the mean covariance of the last rounds. None: each moves alone.
    Raises ValueError where an estimate is no finite number.
    """
    reasons = frozen or {}
    for estimate in estimates:
        if not math.isfinite(estimate.value):
            raise ValueError(
                f"{estimate.constraint}: the cost estimate is {estimate.value}; a dual step needs a finite number"
            )
    joint_names, lines = set[str](), tuple[str, ...]()
    if covariance is not None and any(isinstance(limit.rule, DampedNewton) for limit in state.limits):
        state = replace(state, covariances=_newest_covariances(state, covariance))
        joint_names = {limit.name for limit in state.limits if isinstance(limit.rule, DampedNewton)}
    next_state = state
    if joint_names:
        held_names = {estimate.constraint for estimate in estimates if estimate.constraint in reasons}
        excess = np.array(
            [estimate.value - limit.aim(estimate) for estimate, limit in zip(estimates, state.limits, strict=True)]
        )
        moved = np.array([estimate.moved for estimate in estimates])
        limits, record = newton_step(
            state.limits, excess, recent_covariance(state), moved=moved if moved.any() else None, frozen=held_names
        )
        next_state, lines = replace(state, limits=limits), tuple(record.log_lines())
    steps = []
    for estimate in estimates:
        old = state[estimate.constraint]
        if estimate.constraint in reasons:
            step = DualStep(old.name, estimate, old.multiplier, old.multiplier, 0.0, reasons[estimate.constraint])
        elif old.name in joint_names:
            new = next_state[old.name]
            step = DualStep(
                old.name, estimate, old.multiplier, new.multiplier, 0.0, new.message, old.margin_of(estimate)
            )
        else:
            next_state, step = ascend(next_state, estimate)
        steps.append(step)
    return next_state, JointStep(tuple(steps), lines)


def _newest_covariances(state: DualState, covariance: Array) -> tuple[tuple[float, tuple[tuple[float, ...], ...]], ...]:
    newest = temperature_of(state.limits, 0.0), tuple(map(tuple, covariance.tolist()))
    return (*state.covariances, newest)[-COVARIANCE_ROUNDS:]


@dataclass(frozen=True, eq=False)
class Estimates:
    """What one step is taken from: the estimates of all limits that a round's policy was measured under."""

    round: int
    """Whose policy was measured."""
    limits: tuple[CostEstimate, ...]
    covariance: Array | None = None
    """Of the costs of the same answers within prompts; None: the limits have answers of their own. [I, I]"""
    held: Mapping[str, str] = field(default_factory=dict)
    """Why a limit's multiplier may not move, by its name."""


class DualOwner(Protocol):
    """Owner of the multipliers: an object in this process, or a named actor. Steps are idempotent by round."""

    def restore(self, steps: Iterable[Estimates]) -> None:
        """Rebuild the state from what the journalled steps were taken from, in order."""
        ...

    def multipliers(self, round_: int) -> Mapping[str, float]:
        """Multipliers that govern a round: after all steps that were taken in earlier rounds."""
        ...

    def step(self, estimates: Estimates) -> JointStep:
        """The step from a round's estimates, taken `rounds_late` rounds after it; asked again, it is only returned."""
        ...


class LocalDual:
    """The multipliers in this process."""

    def __init__(self, state: DualState) -> None:
        self._state = state
        self._steps: dict[int, JointStep] = {}
        self._first_multipliers = {limit.name: limit.multiplier for limit in state.limits}

    def restore(self, steps: Iterable[Estimates]) -> None:
        for estimates in steps:
            self.step(estimates)

    def multipliers(self, round_: int) -> Mapping[str, float]:
        current = dict(self._first_multipliers)
        for number, joint_step in sorted(self._steps.items()):
            for step in joint_step.steps:
                if number + step.estimate.rounds_late < round_:
                    current[step.constraint] = step.multiplier_after
        return current

    def step(self, estimates: Estimates) -> JointStep:
        number = estimates.round
        if number not in self._steps:
            multipliers = self.multipliers(number)
            limits = [
                replace(estimate, moved=self._state[estimate.constraint].multiplier - multipliers[estimate.constraint])
                for estimate in estimates.limits
            ]
            self._state, joint_step = ascend_all(self._state, limits, estimates.covariance, estimates.held)
            steps = tuple(replace(step, multiplier_before=multipliers[step.constraint]) for step in joint_step.steps)
            self._steps[number] = replace(joint_step, steps=steps)
        return self._steps[number]


class DualController:
    """Journals the steps of an owner, which it restores on a restart.

    `frozen` says which limits' multipliers may not move in this round, each with the reason.
    """

    def __init__(self, owner: DualOwner, journal: Journal, frozen: Callable[[], Mapping[str, str]] = dict) -> None:
        self._owner, self._journal, self._hold_reasons = owner, journal, frozen
        owner.restore(journalled_estimates(journal))
        self._messages: dict[str, str | None] = {}

    @property
    def multipliers(self) -> dict[str, float]:
        """Multiplier of every limit in this round, in the order of the limits."""
        return dict(self._owner.multipliers(self._journal.round))

    @property
    def multiplier(self) -> float:
        """The multiplier of a run with one limit; with several, the first one's."""
        return next(iter(self.multipliers.values()))

    @property
    def message(self) -> str | None:
        """Messages of the last step (stuck at an end, infeasible); mostly None."""
        return "; ".join(message for message in self._messages.values() if message) or None

    def step(self, estimates: Sequence[CostEstimate], covariance: Array | None = None) -> dict[str, float]:
        """One step of all estimated limits, together where their covariance is known; returns the next multipliers."""
        payload = self._journal.once(PHASE, lambda: self._take_step(tuple(estimates), covariance))
        for line in payload["moved"]:
            logger.info("round %d: multiplier of %s", self._journal.round, line)
        self._messages = {name: record["message"] for name, record in payload["limits"].items()}
        return {name: float(record["multiplier"]) for name, record in payload["limits"].items()}

    def observe(
        self,
        estimates: Sequence[CostEstimate],
        *,
        multiplier: float | None = None,
        following: float | None = None,
    ) -> None:
        """Journals estimates that move nothing here: the multiplier is fixed, or the method has a rule of its own.

        Such a method passes the multiplier of the round's policy and, if another one follows, that one.
        """

        def observed() -> dict[str, Any]:
            steps = []
            for estimate in estimates:
                value = self.multipliers[estimate.constraint] if multiplier is None else multiplier
                steps.append(
                    DualStep(estimate.constraint, estimate, value, value if following is None else following, 0.0)
                )
            return {**self._record_step(JointStep(tuple(steps)), None), "observed": True}

        self._journal.once(PHASE, observed)

    def _take_step(self, estimates: tuple[CostEstimate, ...], covariance: Array | None) -> dict[str, Any]:
        names = {estimate.constraint for estimate in estimates}
        reasons = {name: reason for name, reason in self._hold_reasons().items() if name in names}
        joint_step = self._owner.step(Estimates(self._journal.round, estimates, covariance, reasons))
        return {**self._record_step(joint_step, covariance), **({"held": reasons} if reasons else {})}

    def _record_step(self, joint_step: JointStep, covariance: Array | None) -> dict[str, Any]:
        first = next(iter(self.multipliers))
        for step in joint_step.steps:
            estimate, prefix = step.estimate, "" if step.constraint == first else f"{step.constraint}/"
            self._journal.add_dual_step(
                step.constraint, estimate, step.multiplier_before, step.multiplier_after, step.eta
            )
            ends = interval(estimate)
            self._journal.add_metrics(
                {
                    f"{prefix}dual/multiplier": step.multiplier_before,
                    f"{prefix}dual/next": step.multiplier_after,
                    f"{prefix}dual/eta": step.eta,
                    f"{prefix}cost/estimate": estimate.value,
                    f"{prefix}cost/standard_error": estimate.standard_error,
                    **({f"dual/margin_{step.constraint}": step.margin} if step.margin else {}),
                    **({f"{prefix}dual/rounds_late": estimate.rounds_late} if estimate.rounds_late else {}),
                    **({} if ends is None else {f"{prefix}cost/low": ends[0], f"{prefix}cost/high": ends[1]}),
                }
            )
        return {
            "limits": {
                step.constraint: {
                    "multiplier": step.multiplier_after,
                    "message": step.message,
                    "within_variance": step.estimate.within_variance,
                    "rounds_late": step.estimate.rounds_late,
                }
                for step in joint_step.steps
            },
            "moved": list(joint_step.lines),
            "covariance": None if covariance is None else covariance.tolist(),
        }


def journalled_estimates(journal: JournalReader) -> list[Estimates]:
    """The estimates of every step, in the order of the steps: with the variance within prompts, which Newton's step
    needs, and how many rounds late the labels were. Raises UserError for steps in an older version's form."""
    rows: dict[int, dict[str, CostEstimate]] = {}
    for step in journal.dual_steps():
        rows.setdefault(step.round, {})[step.constraint] = step.estimate
    estimates = []
    for entry in journal.phases(like=PHASE):
        payload = entry.payload
        if "limits" not in payload:
            raise UserError(
                f"run {journal.run_id} was begun with an older version, which kept the steps of its multipliers in"
                " another form; resume it with that version, or begin a new run"
            )
        if payload.get("observed"):
            continue
        limits = tuple(
            replace(rows[entry.round][name], within_variance=item["within_variance"], rounds_late=item["rounds_late"])
            for name, item in payload["limits"].items()
        )
        covariance = None if payload["covariance"] is None else np.array(payload["covariance"])
        estimates.append(Estimates(entry.round, limits, covariance, payload.get("held", {})))
    return estimates
