"""A bonus that counts how often a prompt was asked about: `explore.bonus=seldom-asked`."""

from __future__ import annotations

from collections import Counter

import numpy as np
from pydantic import Field

from pddpo_ray.config.sections.explore import Bonus
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.exploration.alternatives import BOTH
from pddpo_ray.exploration.bonuses import BonusContext
from pddpo_ray.records import Array, Stage


class SeldomAsked(Strict):
    """How fast curiosity about a prompt fades."""

    power: float = Field(0.5, gt=0)
    """The bonus is k ||phi|| / (1 + n)^power after n pairs of the prompt."""


class PromptCounts:
    """Satisfies exploration.alternatives.Uncertainty."""

    def __init__(self, k: float, power: float) -> None:
        self._k, self._power = k, power
        self._compared, self._batch = Counter[str](), Counter[str]()

    def start_batch(self, generator: np.random.Generator) -> None:
        self._batch = Counter()

    def bonuses(self, prompt: str, centred: Array) -> tuple[Array, Array]:
        seen = 1 + self._compared[prompt] + self._batch[prompt]
        bonus = self._k * np.linalg.norm(centred, axis=1) / seen**self._power
        return bonus, bonus

    def distances(self, differences: Array) -> Array:
        return np.linalg.norm(differences, axis=1)

    def picked(self, prompt: str, chosen: Array, other: Array) -> None:
        self._batch[prompt] += 1

    def observe(self, prompt: str, chosen: Array, other: Array, streams: tuple[Stage, ...] = BOTH) -> None:
        self._compared[prompt] += 1

    @property
    def information(self) -> float:
        return float(self._compared.total())


def seldom_asked(settings: SeldomAsked, run: BonusContext) -> PromptCounts:
    """The bonus for a run."""
    return PromptCounts(run.k, settings.power)


SELDOM_ASKED = Bonus("pddpo_politeness.bonus:seldom_asked", SeldomAsked)
