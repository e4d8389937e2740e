"""DPO-Helpful: DPO on the reward pairs alone (docs/methods.md), the first stage of every two-stage method.

Departure: as in DPO-Harmless, the whole response counts.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, lagrangian_objective, observe, reward_objective
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One fit on D^r; at multiplier 0 the round's policy is the reward policy itself."""
    parts.prepare()
    reward_policy = parts.trainer.fit(reward_objective(reference, sizes.beta), parts.preferences.reward)
    for _ in parts.journal.rounds(sizes.rounds):
        policy = parts.trainer.fit(lagrangian_objective(reward_policy, 0.0, sizes.beta), parts.preferences.cost)
        observe(parts, policy, sizes, multiplier=0.0)
    return UniformMixture(tuple(parts.journal.policies))
