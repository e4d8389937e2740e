"""P-SACPO (docs/methods.md): SACPO at a large multiplier, then weights halfway back to the helpful policy.

    theta = (1 - q) theta_helpful + q theta_safe

For small updates that is SACPO at q times the multiplier, without a fit for every q.

Departures: weights are mixed in float32 here (the original mixes bfloat16 with a merging tool). A table has logits
instead of weights; mixing those is SACPO at q times the multiplier *exactly*.
"""

from __future__ import annotations

from pddpo_lab.methods.settings import PSacpoSettings
from pddpo_ray.algorithms.stages import Parts, Sizes, lagrangian_objective, observe, reward_objective
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """SACPO's two fits and one merge; the merged policy is the method's."""
    parts.prepare()
    share = sizes.own(PSacpoSettings).share
    helpful = parts.trainer.fit(reward_objective(reference, sizes.beta), parts.preferences.reward)
    for _ in parts.journal.rounds(sizes.rounds):
        multiplier = parts.dual.multiplier
        safe = parts.trainer.fit(lagrangian_objective(helpful, multiplier, sizes.beta), parts.preferences.cost)
        policy = parts.own.merged(helpful, safe, share)
        observe(parts, policy, sizes, multiplier=share * multiplier)
    return UniformMixture(tuple(parts.journal.policies))
