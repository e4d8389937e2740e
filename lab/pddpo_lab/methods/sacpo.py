"""SACPO (docs/methods.md): DPO for helpfulness, then DPO for safety relative to that, at temperature beta/multiplier.

The second stage is the cost stage of PD-DPO, the original's beta' is beta/multiplier; the multiplier is given, from a
grid, and nothing learns it.

Departures: the stages are DPO (the original offers KTO as well); helpfulness comes first.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, lagrangian_objective, observe, reward_objective
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One fit on D^r from the reference, one on D^c from the result."""
    parts.prepare()
    helpful = parts.trainer.fit(reward_objective(reference, sizes.beta), parts.preferences.reward)
    for _ in parts.journal.rounds(sizes.rounds):
        safety = lagrangian_objective(helpful, parts.dual.multiplier, sizes.beta)
        policy = parts.trainer.fit(safety, parts.preferences.cost)
        observe(parts, policy, sizes)
    return UniformMixture(tuple(parts.journal.policies))
