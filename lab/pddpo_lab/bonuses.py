"""Bonuses that studies compare with the shipped one: a random guess in its place, and counts without linear algebra.

- `SimHashCounts`: where linear algebra is unwanted (quick tests) or features are many and coarse. A dictionary.
- `ThompsonBonus`: one random guess a round instead of a systematic bonus; ties the best elliptical one in tables.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from pydantic import BaseModel

from pddpo_ray.config.sections.explore import Bonus
from pddpo_ray.exploration.alternatives import BOTH, EllipticalBonus, Uncertainty
from pddpo_ray.exploration.bonuses import BonusContext
from pddpo_ray.records import Array, Stage

THOMPSON = Bonus("pddpo_lab.bonuses:thompson")
SIMHASH = Bonus("pddpo_lab.bonuses:simhash")


class ThompsonBonus(EllipticalBonus):
    """(theta - theta_hat) . phi_c with theta - theta_hat ~ N(0, k^2 Lambda^-1), one draw per stream and batch.

    Added to the policy's own scores this is acting on a posterior sample; the cost's part has its sign turned, because
    a bonus lowers the cost. Values are negative for about half of the answers.
    """

    def start_batch(self, generator: np.random.Generator) -> None:
        super().start_batch(generator)
        self._deviations: dict[Stage, Array] = {}
        for stage in BOTH:
            noise = generator.standard_normal(len(self._inverses[stage]))
            self._deviations[stage] = self.k * np.linalg.cholesky(self._inverses[stage]) @ noise

    def bonuses(self, prompt: str, centred: Array) -> tuple[Array, Array]:
        return centred @ self._deviations["reward"], -(centred @ self._deviations["cost"])


class SimHashCounts:
    """b = alpha / sqrt(1 + n), n = answers compared under the same (prompt, sign pattern of 16 random projections)."""

    def __init__(self, dimension: int, *, alpha: float, seed: int, bits: int = 16) -> None:
        self.alpha = alpha
        self._projection = np.random.default_rng([seed, dimension, bits]).standard_normal((bits, dimension))
        self._powers = 1 << np.arange(bits)
        self.counts: dict[Stage, Counter[tuple[str, int]]] = {stage: Counter() for stage in BOTH}
        self._batch: Counter[tuple[str, int]] = Counter()

    def start_batch(self, generator: np.random.Generator) -> None:
        self._batch = Counter()

    def bonuses(self, prompt: str, centred: Array) -> tuple[Array, Array]:
        keys = self._keys(prompt, centred)
        reward, cost = (np.array([self.counts[stage][key] + self._batch[key] for key in keys]) for stage in BOTH)
        return self.alpha / np.sqrt(1.0 + reward), self.alpha / np.sqrt(1.0 + cost)

    def distances(self, differences: Array) -> Array:
        return np.linalg.norm(differences, axis=1)

    def picked(self, prompt: str, chosen: Array, other: Array) -> None:
        self._batch.update(self._keys(prompt, np.stack([chosen, other])))

    def observe(self, prompt: str, chosen: Array, other: Array, streams: tuple[Stage, ...] = BOTH) -> None:
        for stage in streams:
            self.counts[stage].update(self._keys(prompt, np.stack([chosen, other])))

    @property
    def information(self) -> float:
        """Distinct (prompt, code) cells seen, averaged over the streams."""
        return 0.5 * sum(len(counts) for counts in self.counts.values())

    def _keys(self, prompt: str, centred: Array) -> list[tuple[str, int]]:
        codes = (centred @ self._projection.T > 0) @ self._powers
        return [(prompt, int(code)) for code in codes]


def thompson(settings: BaseModel | None, run: BonusContext) -> Uncertainty:
    return ThompsonBonus(run.dimension, k=run.k, s0=run.s0, weight=run.weight)


def simhash(settings: BaseModel | None, run: BonusContext) -> Uncertainty:
    return SimHashCounts(run.dimension, alpha=run.k, seed=run.seed)
