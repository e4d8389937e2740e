"""A bonus inside the losses of a round, as the paper has it: its margins, and the explorer that has it at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from pddpo_lab.margins import Bonus
from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.driver.build import BuiltParts, explorer_of
from pddpo_ray.journal import Journal
from pddpo_ray.parts.exploring import Chooser, ExplorationController
from pddpo_ray.records import Array, LabelledPair, Objective, Pair, PairRow, Response, Stage, by_prompt
from pddpo_ray.theory.multipliers.dual import LimitState


@dataclass(frozen=True)
class LossBonus:
    """A bonus inside a stage's loss (paper.md §9): the margin of each row, and in a table the bonus of every answer."""

    margins: tuple[float, ...] = ()
    answers: tuple[float, ...] = ()

    def of(self, objective: Objective) -> Objective:
        """The objective with this bonus in its loss."""
        return replace(objective, margins=self.margins, answer_bonus=self.answers)


def bonus_margin(chosen: Bonus, rejected: Bonus) -> Bonus:
    """b(rejected) - b(chosen): with this margin a fit adds the stage's bonus to what it learns. [...], [...] -> [...]

    Reward stage: -(b_r(better) - b_r(worse)); the minimiser's implicit reward is reward + bonus.
    Cost stage: b_c(costlier) - b_c(cheaper); the minimiser's implicit cost is cost - bonus, so uncertain answers are
    assumed cheaper. Nothing is divided by the multiplier (paper.md erratum 1).
    """
    return rejected - chosen


class BonusSource(Chooser, Protocol):
    """An explorer that tells its bonus."""

    def bonuses(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        """Reward and cost bonus of any answers under the pairs seen so far. -> [n], [n]"""
        ...


class LossBonuses(ExplorationController):
    """Chooses as its explorer does, and gives the bonus of `bonus`, which sees the same pairs, to the losses. `answers`
    are all answers of a table, prompt by prompt (empty: they cannot be listed)."""

    def __init__(
        self,
        explorer: Chooser,
        journal: Journal,
        bonus: BonusSource,
        *,
        answers: Sequence[Response] = (),
        keep: int | None = None,
    ) -> None:
        super().__init__(explorer, journal, keep=keep)
        self._bonus = bonus
        self._answers = tuple(answers)

    def update(self, pairs: Sequence[Pair]) -> None:
        super().update(pairs)
        self._bonus.update(pairs)

    def _meet_prompts(self, round_: int) -> None:
        super()._meet_prompts(round_)
        self._bonus.meet(by_prompt(self._journal.samples(round_, "baseline")))

    def loss_bonus(self, stage: Stage, rows: Sequence[PairRow], labelled: Sequence[LabelledPair]) -> LossBonus:
        """The stage's bonus inside its loss (paper.md §9): a margin for every row, and the bonus of all answers."""
        if not rows:
            return LossBonus()
        pairs = {item.pair.id: item.pair for item in labelled}
        chosen, rejected = [], []
        for row in rows:
            pair = pairs[row.id]
            first_is_chosen = row.chosen == pair.first.token_ids
            chosen.append(pair.first if first_is_chosen else pair.second)
            rejected.append(pair.second if first_is_chosen else pair.first)
        margins = bonus_margin(self._bonus_of(stage, chosen), self._bonus_of(stage, rejected))
        return LossBonus(tuple(margins.tolist()), tuple(self._bonus_of(stage, self._answers).tolist()))

    def _bonus_of(self, stage: Stage, answers: Sequence[Response]) -> Array:
        """-> [n]"""
        if not answers:
            return np.zeros(0)
        reward, cost = self._bonus.bonuses(answers)
        return reward if stage == "reward" else cost


def loss_bonuses_of(config: Config, backends: Backends, parts: BuiltParts, first: LimitState) -> LossBonuses:
    """The part of a run: the policy's own answers are paired, as its policy carries the bonus."""
    chooser, bonus = (explorer_of(config, backends, parts, kind) for kind in ("off", config.explore.bonus))
    return LossBonuses(chooser, parts.journal, bonus, answers=backends.answers, keep=config.explore.keep)
