"""Rounds that do not stand still for people (`feedback.rounds_late`): which labels are due in a round.

    round 5 asks ──► fits and explores on what is there ──► takes what has arrived: labels of round 2, of 3
                                                            waits for those of round 5 - rounds_late

Labels are taken in the order of the rounds that asked for them, complete batches alone, and never later than the
bound: there the run waits for them and parks as it does without overlap. The last round takes all that is left. What a
round takes is a phase of its own (`due-safety`, `due-pairs`), so that a run which was killed takes the same again.
Labels are journalled under the round that asked for them: they are about its policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.records import Pair, Response

SAFETY, PAIRS = "due-safety", "due-pairs"
"""Phases whose payload lists the rounds whose labels a round takes."""


class DueLabels:
    """Satisfies contracts.Due, with labels up to `rounds_late` rounds late in a run of `rounds` rounds.

    While the caller handles what is yielded, the journal's round is the one that asked.
    """

    def __init__(self, journal: Journal, feedback: FeedbackController, *, rounds_late: int, rounds: int) -> None:
        self._journal, self._feedback = journal, feedback
        self._rounds_late, self._rounds = rounds_late, rounds

    def answers(
        self, answers: Sequence[Response], arrived: Callable[[Sequence[Response]], bool]
    ) -> Iterator[tuple[int, Sequence[Response]]]:
        """The answers whose measures are taken now, round by round, and how many rounds late they are."""
        now = self._journal.round
        for number in self._due_rounds(SAFETY, lambda: arrived(self._round_answers())):
            yield now - number, self._round_answers()

    def pairs(self, pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        """The pairs whose labels are taken now, round by round; this round's are asked."""
        self._feedback.open_comparisons(pairs)

        def arrived() -> bool:
            return self._feedback.comparisons_arrived(self._round_pairs())

        for _ in self._due_rounds(PAIRS, arrived):
            yield self._round_pairs()

    def _due_rounds(self, phase: str, arrived: Callable[[], bool]) -> Iterator[int]:
        """Rounds whose labels are taken in this one. The journal stands at each of them in turn."""
        now = self._journal.round
        due = self._journal.once(phase, lambda: list(self._visit_rounds(self._choose_due_rounds(now, phase, arrived))))
        yield from self._visit_rounds(iter(due))

    def _choose_due_rounds(self, now: int, phase: str, arrived: Callable[[], bool]) -> Iterator[int]:
        taken_rounds = {number for entry in self._journal.phases(like=phase) for number in entry.payload}
        for number in range(1, now + 1):
            if number in taken_rounds:
                continue
            self._journal.round = number
            if now < self._rounds and number > now - self._rounds_late and not arrived():
                return
            yield number

    def _visit_rounds(self, numbers: Iterator[int]) -> Iterator[int]:
        now = self._journal.round
        try:
            for number in numbers:
                self._journal.round = number
                yield number
        finally:
            self._journal.round = now

    def _round_answers(self) -> list[Response]:
        return self._journal.samples(self._journal.round, "cost")

    def _round_pairs(self) -> list[Pair]:
        return self._journal.pair_questions(self._journal.round)


def rounds_labelled_in(journal: JournalReader, number: int) -> list[int]:
    """Rounds whose safety labels a round took: itself, where labels are not late."""
    stored = journal.phases(number, like=SAFETY)
    return list(stored[0].payload) if stored else [number]
