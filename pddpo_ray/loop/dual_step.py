"""The dual variable as the methods see it: the multipliers of this round, and one step per estimate.

`multiplier` is the one that governs the round being worked on; a step changes it for the next round. So a round that
is done again after a restart sees the same multiplier as the first time, whether its step was already taken or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.cost_estimate import interval
from pddpo_ray.theory.dual import DualState, DualStep, ascend

HELD = "held"
"""In a step's payload: the multiplier was not allowed to move."""


class DualOwner(Protocol):
    """Owner of the multipliers: an object in this process, or a named actor. Steps are idempotent by round."""

    def restore(self, estimates: Iterable[tuple[int, CostEstimate]]) -> None:
        """Rebuild the state from journalled (round, estimate), in order."""
        ...

    def multipliers(self, round_: int) -> Mapping[str, float]:
        """Multipliers that govern a round: after all steps that were taken in earlier rounds."""
        ...

    def ascend(self, round_: int, estimate: CostEstimate) -> DualStep:
        """The step for the estimate's constraint from a round's labels; asked again, it is returned and not repeated.

        It is taken `estimate.rounds_late` rounds after that round."""
        ...


class LocalDual:
    """The multipliers in this process. During `warmup_rounds` they stay where they are."""

    def __init__(self, state: DualState, *, warmup_rounds: int = 0) -> None:
        self._state = state
        self._warmup = warmup_rounds
        self._steps: dict[tuple[int, str], DualStep] = {}
        self._first = {constraint.name: constraint.multiplier for constraint in state.constraints}

    def restore(self, estimates: Iterable[tuple[int, CostEstimate]]) -> None:
        for round_, estimate in estimates:
            self.ascend(round_, estimate)

    def multipliers(self, round_: int) -> Mapping[str, float]:
        current = dict(self._first)
        for (number, name), step in sorted(self._steps.items()):
            if number + step.estimate.rounds_late < round_:
                current[name] = step.multiplier_after
        return current

    def ascend(self, round_: int, estimate: CostEstimate) -> DualStep:
        key = (round_, estimate.constraint)
        if key not in self._steps:
            if round_ <= self._warmup:
                self._steps[key] = self._unmoved(estimate)
            else:
                then = self.multipliers(round_)[estimate.constraint]
                moved = self._state[estimate.constraint].multiplier - then
                self._state, step = ascend(self._state, replace(estimate, moved=moved))
                self._steps[key] = replace(step, multiplier_before=then)
        return self._steps[key]

    def _unmoved(self, estimate: CostEstimate) -> DualStep:
        constraint = self._state[estimate.constraint]
        value = constraint.multiplier
        message = "the multiplier stands still while the policy warms up"
        return DualStep(constraint.name, estimate, constraint.threshold, value, value, 0.0, message)


def never_held(multiplier: float) -> str | None:
    """A multiplier that may move in every round."""
    return None


class DualController:
    """Journals the steps of an owner, which it restores on a restart.

    `held` says for a multiplier why it may not move in this round, or None. The owner never hears of such a round.
    """

    def __init__(self, owner: DualOwner, journal: Journal, held: Callable[[float], str | None] = never_held) -> None:
        self._owner = owner
        self._journal = journal
        self._held = held
        owner.restore(journalled_estimates(journal))
        self._messages: dict[str, str | None] = {}

    @property
    def multipliers(self) -> dict[str, float]:
        """Multiplier of every constraint in this round, in the order of the constraints."""
        return dict(self._owner.multipliers(self._journal.round))

    @property
    def multiplier(self) -> float:
        """The multiplier of a run with one constraint; with several, the first one's."""
        return next(iter(self.multipliers.values()))

    @property
    def message(self) -> str | None:
        """What the last steps have to say in words (stuck at an end, infeasible); None mostly."""
        return "; ".join(message for message in self._messages.values() if message) or None

    def ascend(self, estimate: CostEstimate) -> float:
        """One projected step of the estimate's constraint; returns the multiplier of the next round."""
        phase, prefix = self._place(estimate.constraint)
        payload = self._journal.once(phase, lambda: self._step(estimate, prefix))
        self._messages[estimate.constraint] = payload["message"]
        return float(payload["multiplier"])

    def observe(
        self, estimate: CostEstimate, *, multiplier: float | None = None, following: float | None = None
    ) -> None:
        """Journals an estimate that moves nothing here: the multiplier is fixed, or the method has a rule of its own.

        Such a method says with which multiplier the round's policy was made and, if another one follows, which.
        """
        value = self.multipliers[estimate.constraint] if multiplier is None else multiplier
        after = value if following is None else following
        unmoved = DualStep(estimate.constraint, estimate, 0.0, value, after, 0.0, None)
        phase, prefix = self._place(estimate.constraint)
        self._journal.once(phase, lambda: self._record(unmoved, prefix))

    def _place(self, constraint: str) -> tuple[str, str]:
        """Phase of a constraint's step and prefix of its metrics: none for the first constraint."""
        first = constraint == next(iter(self.multipliers))
        return ("dual", "") if first else (f"dual-{constraint}", f"{constraint}/")

    def _step(self, estimate: CostEstimate, prefix: str) -> dict[str, float | str | bool | None]:
        value = self.multipliers[estimate.constraint]
        reason = self._held(value)
        if reason is None:
            return self._record(self._owner.ascend(self._journal.round, estimate), prefix)
        unmoved = DualStep(estimate.constraint, estimate, 0.0, value, value, 0.0, reason)
        return {**self._record(unmoved, prefix), HELD: True}

    def _record(self, step: DualStep, prefix: str) -> dict[str, float | str | bool | None]:
        estimate = step.estimate
        self._journal.add_dual_step(
            step.constraint, step.estimate, step.multiplier_before, step.multiplier_after, step.eta
        )
        ends = interval(estimate)
        self._journal.add_metrics(
            {
                f"{prefix}dual/multiplier": step.multiplier_before,
                f"{prefix}dual/next": step.multiplier_after,
                f"{prefix}dual/eta": step.eta,
                f"{prefix}cost/estimate": estimate.value,
                f"{prefix}cost/standard_error": estimate.standard_error,
                **({f"{prefix}dual/rounds_late": estimate.rounds_late} if estimate.rounds_late else {}),
                **({} if ends is None else {f"{prefix}cost/low": ends[0], f"{prefix}cost/high": ends[1]}),
            }
        )
        return {
            "multiplier": step.multiplier_after,
            "message": step.message,
            "constraint": step.constraint,
            "within_variance": estimate.within_variance,
            **({"rounds_late": estimate.rounds_late} if estimate.rounds_late else {}),
        }


def journalled_estimates(journal: JournalReader) -> list[tuple[int, CostEstimate]]:
    """(round, estimate) of every step, as the rule saw them: with the variance within prompts, which Newton's step
    needs, and how many rounds late the labels were.

    Steps that were held back are none.
    """
    payloads = [(entry.round, entry.payload) for entry in journal.phases(like="dual%")]
    held = {(number, payload.get("constraint")) for number, payload in payloads if payload.get(HELD)}
    unstored = {
        (number, payload.get("constraint")): {
            "within_variance": payload.get("within_variance"), "rounds_late": payload.get("rounds_late", 0)
        }
        for number, payload in payloads
    }  # fmt: skip
    return [
        (step.round, replace(step.estimate, **unstored.get((step.round, step.constraint), {})))
        for step in journal.dual_steps()
        if (step.round, step.constraint) not in held
    ]
