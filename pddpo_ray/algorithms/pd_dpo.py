"""PD-DPO (the paper's Algorithm 1): fixed preferences; only the multiplier learns, from labels of fresh answers."""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, reward_fits
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One reward fit, then K rounds of a cost fit and a step of the multiplier."""
    parts.prepare()
    reward_policy = reward_fits(parts, reference)
    for _ in parts.journal.rounds(sizes.rounds):
        policy = parts.limits.stages(parts.trainer, parts.preferences, reward_policy())
        parts.rollout.publish(policy)
        answers = parts.rollout.sample(parts.prompts.draw(sizes.responses), policy, each=sizes.answers_each)
        parts.limits.open(answers)
        parts.limits.step(answers)
    return UniformMixture(tuple(parts.journal.policies))
