"""Limits whose costs are estimated from labels of single answers: the paper's cost, and others of its kind.

Each has a cost stage of its own, which learns from comparisons, labels of its own and a multiplier of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pddpo_ray.algorithms.stages import lagrangian_objective
from pddpo_ray.contracts import Dual, Due, Feedback, Preferences, Trainer
from pddpo_ray.journal import Journal
from pddpo_ray.records import CostEstimate, Pair, PolicyVersion, Response, SafetyLabels

Estimate = Callable[[Sequence[SafetyLabels]], CostEstimate]


class LabelledLimits:
    """Satisfies contracts.Limits. `labels_each` are M of the paper; `due` says whose labels a step takes.

    `window`: adaLag's estimate is the mean of so many newest labelled answers of all rounds so far, the journal being
    its memory; None: of the round's own.
    """

    on_drift = False

    def __init__(
        self,
        dual: Dual,
        feedback: Feedback,
        estimate: Estimate,
        due: Due,
        *,
        beta: float,
        labels_each: int,
        window: tuple[Journal, int] | None = None,
    ) -> None:
        self._dual, self._feedback, self._estimate, self._due = dual, feedback, estimate, due
        self._beta, self._labels_each, self._window = beta, labels_each, window

    @property
    def temperature(self) -> float:
        """beta: no limit here is on the drift."""
        return self._beta

    def stages(self, trainer: Trainer, preferences: Preferences, policy: PolicyVersion) -> PolicyVersion:
        """One cost fit per limit, relative to the one before; the order changes no exact optimum (paper.md §19)."""
        for name, multiplier in self._dual.multipliers.items():
            objective = lagrangian_objective(policy, multiplier, self._beta)
            policy = trainer.fit(objective, preferences.cost_of(name))
        return policy

    def open(self, answers: Sequence[Response]) -> None:
        """Whoever labels the answers, for any limit, may begin; nobody waits for the labels yet."""
        self._feedback.open_safety(answers, self._labels_each)

    def estimates(self, answers: Sequence[Response]) -> list[CostEstimate]:
        """One estimate per limit from M labels of each of these answers, which are waited for (paper.md §5)."""
        labels = {name: self._feedback.safety(answers, self._labels_each, name) for name in self._dual.multipliers}
        return [self._estimate(self._newest(name, own)) for name, own in labels.items()]

    def step(self, answers: Sequence[Response]) -> None:
        """Labels that are late move the multipliers when they are there, those of several rounds one after another."""

        def arrived(asked: Sequence[Response]) -> bool:
            return self._feedback.safety_arrived(asked, self._labels_each)

        for rounds_late, labelled in self._due.answers(answers, arrived):
            found = self.estimates(labelled)
            self._dual.step([replace(one, rounds_late=rounds_late) for one in found] if rounds_late else found)

    def observe(self, answers: Sequence[Response], multiplier: float | None = None) -> None:
        self._dual.observe(self.estimates(answers), multiplier=multiplier)

    def measure_pairs(self, pairs: Sequence[Pair]) -> None:
        """Comparisons alone teach these limits' stages."""

    def _newest(self, name: str, own: Sequence[SafetyLabels]) -> Sequence[SafetyLabels]:
        if self._window is None:
            return own
        journal, count = self._window
        newest: list[SafetyLabels] = []
        for number in range(journal.round, 0, -1):
            newest = journal.safety(number, name) + newest
            if len(newest) >= count:
                break
        return newest[-count:]
