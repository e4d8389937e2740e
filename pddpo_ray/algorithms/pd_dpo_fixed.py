"""PD-DPO with a fixed multiplier: SACPO's two stages at temperature beta/multiplier, and a dual rule that never moves.

More than one round means that the cost fit goes on from the last round's policy. The cost of each is estimated for the
report.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import (
    Parts,
    Sizes,
    asked_answers,
    fit_reward,
    lagrangian_chain,
    move_multipliers,
)
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One reward fit, then cost fits at the same multiplier."""
    reward_policy = fit_reward(parts, sizes, reference)
    for _ in parts.journal.rounds(sizes.rounds):
        policy = lagrangian_chain(parts, reward_policy, sizes.beta)
        parts.rollout.publish(policy)
        answers = asked_answers(parts, policy, sizes, parts.prompts.draw(sizes.responses))
        move_multipliers(parts, answers, sizes)  # the rule is fixed: the multipliers stay
    return UniformMixture(tuple(parts.journal.policies))
