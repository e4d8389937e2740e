"""PD-DPO with a fixed multiplier: SACPO's two stages at temperature beta/multiplier, and a dual rule that never moves.

More than one round means that the cost fit starts from the last round's policy. The cost of each is estimated for the
report.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, fit_reward
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One reward fit, then cost fits at the same multiplier."""
    parts.prepare()
    reward_policy = fit_reward(parts, reference)
    for _ in parts.journal.rounds(sizes.rounds):
        policy = parts.limits.stages(parts.trainer, parts.preferences, reward_policy)
        parts.rollout.publish(policy)
        answers = parts.rollout.sample(parts.prompts.draw(sizes.responses), policy, each=sizes.answers_each)
        parts.limits.open(answers)
        parts.limits.step(answers)  # the rule is fixed: the multipliers stay
    return UniformMixture(tuple(parts.journal.policies))
