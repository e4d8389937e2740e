"""Exploration as the pages see it: the explorer's choices, journalled, and its memory rebuilt after a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pddpo_ray.contracts import Array
from pddpo_ray.journal import Journal
from pddpo_ray.records import CandidateSet, LabelledPair, Pair, PairRow, Response, Stage


class Chooser(Protocol):
    """An explorer with something to say about itself (`explore/...`)."""

    def choose(self, candidates: Sequence[CandidateSet]) -> list[Pair]: ...

    def select(self, pairs: Sequence[Pair], keep: int, random_share: float) -> list[Pair]: ...

    def update(self, pairs: Sequence[Pair]) -> None: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...


class BonusSource(Protocol):
    """Bonuses of any answers under the pairs seen so far, for a bonus in the loss."""

    def update(self, pairs: Sequence[Pair]) -> None: ...

    def bonuses(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        """Reward and cost bonus. -> [n], [n]"""
        ...


class ExplorationController:
    """Journals what an explorer chooses. On a restart the pairs of finished rounds are shown to it again.

    `bonus` is what the paper's mode puts into the loss; there the explorer itself chooses without a bonus. `keep`: so
    many of the chosen pairs are labelled, `keep_random` of them drawn evenly, the others by how much they would teach.
    """

    def __init__(
        self,
        explorer: Chooser,
        journal: Journal,
        bonus: BonusSource | None = None,
        *,
        keep: int | None = None,
        keep_random: float = 1.0,
    ) -> None:
        self._explorer = explorer
        self._journal = journal
        self._bonus = bonus
        self._keep = keep
        self._keep_random = keep_random
        for number in range(journal.next_round):
            known = journal.pair_questions(number)
            if known:
                self.update(known)

    def choose(self, candidates: Sequence[CandidateSet]) -> list[Pair]:
        """Pairs to be labelled, with ids that are unique in the run."""
        self._journal.once("explore", lambda: self._choose(candidates))
        return self._journal.pair_questions(self._journal.round)

    def update(self, pairs: Sequence[Pair]) -> None:
        """The pairs enter the design matrices: their answers count as known from the next round on."""
        self._explorer.update(pairs)
        if self._bonus is not None:
            self._bonus.update(pairs)

    def margins(self, stage: Stage, rows: Sequence[PairRow], labelled: Sequence[LabelledPair]) -> tuple[float, ...]:
        """Bonus of the rejected answer minus that of the chosen one, per row (paper.md §9).

        In both stages the logit is lowered by what the chosen answer's bonus is ahead: the fit adds the stage's bonus.
        """
        if self._bonus is None or not rows:
            return ()
        pairs = {item.pair.id: item.pair for item in labelled}
        chosen, rejected = [], []
        for row in rows:
            pair = pairs[row.id]
            first_is_chosen = row.chosen == pair.first.token_ids
            chosen.append(pair.first if first_is_chosen else pair.second)
            rejected.append(pair.second if first_is_chosen else pair.first)
        which = 0 if stage == "reward" else 1
        return tuple(float(b) for b in self._bonus.bonuses(rejected)[which] - self._bonus.bonuses(chosen)[which])

    def _choose(self, candidates: Sequence[CandidateSet]) -> int:
        round_ = self._journal.round
        chosen = self._explorer.choose(candidates)
        found = len(chosen)
        if self._keep is not None:
            chosen = self._explorer.select(chosen, self._keep, self._keep_random)
        pairs = [replace(pair, id=f"{round_}-pair-{index}") for index, pair in enumerate(chosen)]
        self._journal.add_pair_questions(pairs)
        self._journal.add_metrics(dict(self._explorer.metrics))
        if self._keep is not None:
            self._journal.add_metrics({"explore/found": float(found), "explore/pairs": float(len(pairs))})
        return len(pairs)
