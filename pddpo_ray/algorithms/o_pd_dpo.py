"""O-PD-DPO with split roles (the paper's Algorithm 2 as corrected in docs/paper.md; paper.md §16 for the roles).

The behaviour policy is optimistic and only chooses what gets labelled. The policy `pi_k` carries no bonus: it is the
one whose cost is estimated, that moves the multiplier, that enters the mixture and that may be released.

The round's multiplier weighs its cost bonus, before the dual step and after it. So pairs are chosen while the answers
are being labelled for cost, and people have both kinds of questions at once. The labels decide the next multiplier,
which no reward fit reads: the next one may begin while they are still being given.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import (
    Parts,
    Sizes,
    begin_reward_fit,
    fit_reward,
    learn_from,
)
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """K rounds: fit, verify, sample, explore, label, move the multiplier, remember."""
    parts.prepare()
    journal, rollout = parts.journal, parts.rollout
    prompts, explorer = parts.prompts, parts.exploration
    for _ in journal.rounds(sizes.rounds):
        reward_policy = fit_reward(parts, reference)
        policy = parts.limits.stages(parts.trainer, parts.preferences, reward_policy)  # pi_k, no bonus
        rollout.publish(policy)  # verified before anything is sampled
        estimate_prompts, pair_prompts = prompts.draw(sizes.responses), prompts.draw(sizes.pair_prompts)
        answers = rollout.sample(estimate_prompts, policy, pair_prompts, sizes.answers_each)  # N_ce answers of pi_k
        parts.limits.open(answers)  # being labelled from here on
        pairs = explorer.choose(rollout.candidates(pair_prompts, policy))  # optimistic at lambda_k
        learn_from(parts, pairs)  # the same pair for reward and for cost
        explorer.update(pairs)  # design matrices
        begin_reward_fit(parts, reference)  # the next one needs no lambda
        parts.limits.step(answers)  # M_ce labels of each answer
    return UniformMixture(tuple(journal.policies))
