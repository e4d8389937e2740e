"""Exploration as the methods see it: the explorer's choices, journalled, and its memory rebuilt after a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pddpo_ray.journal import Journal
from pddpo_ray.records import CandidateSet, LabelledPair, Pair, Response, by_prompt

KEEP_RANDOM = 0.25
"""Share of the pairs kept by `explore.keep` that is drawn evenly, so that no answer's chance of a label is 0."""


class Chooser(Protocol):
    """An explorer that reports metrics (`explore/...`)."""

    def meet(self, baseline: Mapping[str, Sequence[Response]]) -> None: ...

    def choose(self, candidates: Sequence[CandidateSet]) -> list[Pair]: ...

    def select(self, pairs: Sequence[Pair], keep: int, random_share: float) -> list[Pair]: ...

    def update(self, pairs: Sequence[Pair]) -> None: ...

    def learn(self, labelled: Callable[[], Sequence[LabelledPair]]) -> None: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...


class ExplorationController:
    """Journals what an explorer chooses. `read_back` shows it again what it saw before round 1 and in the finished
    rounds: the baseline's answers to prompts that were new in a round, then the round's pairs.

    With `keep`, only that many of the chosen pairs are labelled: the share `keep_random` is drawn evenly, the others
    are those that would teach most.
    """

    def __init__(
        self,
        explorer: Chooser,
        journal: Journal,
        *,
        keep: int | None = None,
        keep_random: float = KEEP_RANDOM,
    ) -> None:
        self._explorer = explorer
        self._journal = journal
        self._keep = keep
        self._keep_random = keep_random

    def read_back(self) -> None:
        for number in range(self._journal.next_round):
            self._meet_prompts(number)
            pairs = self._journal.pair_questions(number)
            if pairs:
                self.update(pairs)

    def choose(self, candidates: Sequence[CandidateSet]) -> list[Pair]:
        """Pairs to be labelled, with ids that are unique in the run."""
        self._meet_prompts(self._journal.round)
        self._journal.once("explore", lambda: self._choose_pairs(candidates))
        return self._journal.pair_questions(self._journal.round)

    def update(self, pairs: Sequence[Pair]) -> None:
        """The pairs enter the design matrices: their answers count as known from the next round on."""
        self._explorer.update(pairs)

    def _meet_prompts(self, round_: int) -> None:
        self._explorer.meet(by_prompt(self._journal.samples(round_, "baseline")))

    def _choose_pairs(self, candidates: Sequence[CandidateSet]) -> int:
        round_ = self._journal.round
        self._explorer.learn(lambda: [entry.labelled for entry in self._journal.pairs()])
        chosen_pairs = self._explorer.choose(candidates)
        pair_count = len(chosen_pairs)
        if self._keep is not None:
            chosen_pairs = self._explorer.select(chosen_pairs, self._keep, self._keep_random)
        pairs = [replace(pair, id=f"{round_}-pair-{index}") for index, pair in enumerate(chosen_pairs)]
        self._journal.add_pair_questions(pairs)
        self._journal.add_metrics(dict(self._explorer.metrics))
        if self._keep is not None:
            self._journal.add_metrics({"explore/found": float(pair_count), "explore/pairs": float(len(pairs))})
        return len(pairs)
