"""SACPO (docs/methods.md): DPO for helpfulness, then DPO for safety relative to that, at temperature beta/multiplier.

The second stage is the cost stage of PD-DPO; the multiplier is given, from a grid, and nothing learns it.

Departures: the stages are DPO (the original offers KTO as well); helpfulness comes first.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, observe, reward_objective
from pddpo_ray.records import Objective, PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One fit on D^r from the reference, one on D^c from the result."""
    helpful = parts.trainer.fit(reward_objective(reference, sizes.beta), parts.preferences.reward)
    for _ in parts.journal.rounds(sizes.rounds):
        policy = parts.trainer.fit(safety_objective(parts, helpful, sizes.beta), parts.preferences.cost)
        observe(parts, policy, sizes)
    return UniformMixture(tuple(parts.journal.policies))


def safety_objective(parts: Parts, helpful: PolicyVersion, beta: float) -> Objective:
    """DPO on cost pairs with the helpful policy as reference: the original's beta' is beta/multiplier."""
    multiplier = parts.dual.multiplier
    return Objective("cost", base=helpful, temperature=beta / multiplier, multiplier=multiplier)
