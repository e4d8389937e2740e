"""PD-DPO with a fixed multiplier: SACPO's two stages at temperature beta/multiplier, and a dual rule that never moves.

More than one round means that the cost fit goes on from the last round's policy. The cost of each is estimated for the
report.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, estimates, lagrangian_chain, reward_objective
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One reward fit, then cost fits at the same multiplier."""
    reward_policy = parts.trainer.fit(reward_objective(reference, sizes.beta), parts.preferences.reward)
    for _ in parts.journal.rounds(sizes.rounds):
        policy = lagrangian_chain(parts, reward_policy, sizes.beta)
        parts.rollout.publish(policy)
        for estimate in estimates(parts, policy, sizes):
            parts.dual.ascend(estimate)  # the rule is fixed: the multiplier stays
    return UniformMixture(tuple(parts.journal.policies))
