"""A computed reward in a run: answers measured by its source, and the first stage, which learns from them.

It is measured as the limits are, as the cost -reward (`limits.reading.stated_reward`), so that the stage on values
serves both. The answers of the offline pairs and of every explored pair are measured once; all teach in later rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pddpo_ray.contracts import Measure
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import Source
from pddpo_ray.parts.measuring import MeasuredAnswers, records_of
from pddpo_ray.records import Objective, Pair, PairRow, PolicyVersion, Response
from pddpo_ray.theory.losses.value_stage import value_pairs
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature
from pddpo_ray.theory.seeds import seed_of

OFFLINE, PAIRS = "reward-offline", "reward-pairs"


@dataclass(frozen=True)
class ComputedReward:
    """The reward as it is stated, and who measures answers; its one cost is -reward."""

    stated: StatedLimit
    measure: Measure
    source: Source | None = None
    """What measures; None: a world."""

    @property
    def span(self) -> float:
        """Length of its range, in units of the reward."""
        ends = self.stated.limit.cost_range
        assert ends is not None  # a reward without bounds is refused
        return ends[1] - ends[0]


class RewardController:
    """Satisfies contracts.Rewards. `newest`: its fit learns from the last round's answers alone."""

    def __init__(self, journal: Journal, reward: ComputedReward, *, seed: int, newest: bool = False) -> None:
        self._journal, self._reward, self._seed = journal, reward, seed
        # a reward is no logit, and so has no box
        self._answers = MeasuredAnswers(journal, [reward.stated], math.inf, PAIRS, newest=newest)

    def stage(self, reference: PolicyVersion, weight_of_kl: float) -> tuple[Objective, list[PairRow]]:
        """The regression of log policy / reference on measured differences: its minimiser over all policies is
        reference * exp(reward / weight_of_kl). Raises RunError where no prompt has two measured answers."""
        measured = self._answers.teaching
        factors = {answer.prompt: np.ones(1) for answer in measured}
        span = self._reward.span
        rows, margins = value_pairs(measured, np.ones(1), factors, span)
        if not rows:
            raise RunError(
                f"round {self._journal.round}: no two answers to a prompt have a reward, so there is nothing to learn"
                f" from; see why {self._reward.stated.source} gave no number, or raise its budget (reward.answers)"
            )
        temperature = cost_temperature(weight_of_kl, span)
        return Objective("reward", reference, temperature, margins=tuple(margins), values=True), rows

    def measure_before(self, answers: Sequence[Response]) -> None:
        """Answers of the offline pairs."""
        self._add_measures(OFFLINE, list({answer.id: answer for answer in answers}.values()))

    def measure_pairs(self, pairs: Sequence[Pair]) -> None:
        """Both answers of the round's explored pairs; one that was in a pair before is not asked about again."""
        answers = {answer.id: answer for pair in pairs for answer in (pair.first, pair.second)}
        self._add_measures(PAIRS, [answer for name, answer in answers.items() if name not in self._answers.known])

    def _add_measures(self, phase: str, answers: Sequence[Response]) -> None:
        self._journal.once(phase, lambda: self._journal_measurements(phase, answers))
        self._answers.keep(phase, answers)

    def _journal_measurements(self, phase: str, answers: Sequence[Response]) -> dict[str, Any]:
        measured = self._reward.measure(answers, seed_of(self._seed, self._journal.round, phase))
        rewards = measured.values[:, 0]
        numbers = rewards[np.isfinite(rewards)]
        if len(numbers):
            self._journal.add_metrics({f"reward/{phase.removeprefix('reward-')}": float(numbers.mean())})
        records = records_of([self._reward.stated], answers, measured)
        self._journal.add_measurements(phase, records, answers)
        return {"ids": [answer.id for answer in answers]}
