"""The oracle of all limits together, made apart from `worlds.table_limits`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.limits.quantities import Limit as StatedLimit
from pddpo_ray.records import Array
from pddpo_ray.theory.estimates.prompt_sets import PromptSets
from pddpo_ray.worlds.oracle import Limit, Oracle


@dataclass(frozen=True, eq=False)
class TrueLimit:
    """A limit and its measure of every outcome, in the measure's own unit; 0 of a limit on the KL. [X, Y]"""

    limit: StatedLimit
    measure: Array

    def as_cost(self, sets: PromptSets | None = None) -> Limit:
        """The limit on all prompts: costs of which less is better, times P_s / P_0, and what they may be at most."""
        kl = float(self._is_kl)
        zero = self.limit.cost(0.0)
        cost = zero + (self.limit.cost(1.0) - zero) * self.measure
        return Limit(self.limit.name, cost * self._factor(sets)[:, None], self.limit.cost_limit, kl)

    def value(self, oracle: Oracle, policy: Array, sets: PromptSets | None = None) -> float:
        """E[measure] over the limit's own prompts. `oracle` weighs all prompts, as `under_limits` made it."""
        if self._is_kl:
            return oracle.kl(policy)
        return float(oracle.expectations(policy, self.measure * self._factor(sets)[:, None]))

    @property
    def _is_kl(self) -> bool:
        return self.limit.quantity.kind == "kl"

    def _factor(self, sets: PromptSets | None) -> Array:
        over = self.limit.quantity.over
        if sets is None:
            if over is not None:
                raise UserError(f"limit {self.limit.name} is over `{over}`, and there are no prompt sets")
            return np.ones(len(self.measure))
        factor = np.zeros(len(self.measure))
        factor[np.array(sets.prompts, dtype=int)] = sets.factor(over)
        return factor


def under_limits(world: Oracle, limits: Sequence[TrueLimit], sets: PromptSets | None = None) -> Oracle:
    """The world's reward and reference under these limits instead of its own, all at once.

    `sets` name the world's prompts by their index, in any order; None: all prompts as the world weighs them.
    """
    first, *further = (limit.as_cost(sets) for limit in limits)
    prior = world.prior
    if sets is not None:
        prior = np.zeros(max(map(int, np.array(sets.prompts))) + 1)
        prior[np.array(sets.prompts, dtype=int)] = sets.weights
    if len(prior) != len(world.prior):
        raise UserError(f"the prompt sets name {len(prior)} prompts and the world has {len(world.prior)}")
    scale = max(float(np.abs(limit.cost).max()) for limit in (first, *further))
    return replace(
        world,
        prior=prior,
        cost=first.cost,
        threshold=first.threshold,
        cost_max=scale,
        further=tuple(further),
        first_kl=first.kl,
    )
