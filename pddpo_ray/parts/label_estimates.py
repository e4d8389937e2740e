"""Estimates from the feedback's labels of single answers: of the paper's cost and others of its kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pddpo_ray.contracts import Feedback
from pddpo_ray.journal import Journal
from pddpo_ray.records import CostEstimate, Response, SafetyLabels

Estimate = Callable[[Sequence[SafetyLabels]], CostEstimate]


class LabelEstimates:
    """Labels and estimates of the limits of these names. `labels_each` are M of the paper.

    `window`: adaLag's estimate is the mean of this many newest labelled answers of all rounds so far, the journal being
    its memory; None: of the round's own.
    """

    def __init__(
        self,
        names: Sequence[str],
        feedback: Feedback,
        estimate: Estimate,
        *,
        labels_each: int,
        window: tuple[Journal, int] | None = None,
    ) -> None:
        self._names, self._feedback, self._estimate = tuple(names), feedback, estimate
        self._labels_each, self._window = labels_each, window

    def open(self, answers: Sequence[Response]) -> None:
        """Labellers of the answers, for any limit, may begin; nothing waits for the labels yet."""
        if self._names:
            self._feedback.open_safety(answers, self._labels_each)

    def arrived(self, answers: Sequence[Response]) -> bool:
        """Whether the labels of these answers are there without a wait."""
        return not self._names or self._feedback.safety_arrived(answers, self._labels_each)

    def __call__(self, answers: Sequence[Response]) -> list[CostEstimate]:
        """One estimate per limit from M labels of each of these answers, which are waited for (paper.md §5)."""
        labels = {name: self._feedback.safety(answers, self._labels_each, name) for name in self._names}
        return [self._estimate(self._newest(name, own)) for name, own in labels.items()]

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
