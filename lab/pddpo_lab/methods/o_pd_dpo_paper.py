"""O-PD-DPO as the paper's Algorithm 2 has it, its cost bonus corrected (paper.md erratum 1): a bonus in both losses.

    reward:  beta (h(better) - h(worse))             - (b_r(better) - b_r(worse))      h = log policy/reference
    cost:    beta/lambda (h(cheaper) - h(costlier))  + b_c(costlier) - b_c(cheaper)    h = log policy/reward policy

So the policy of a round is optimistic itself: it collects the data, its cost moves the multiplier, and the mixture of
these policies is the output. It is kept for the theory and for comparison: what it returns breaks the limit more often
than the split roles of `o_pd_dpo`, and a bonus in the loss of a neural
policy reaches no answer outside the pairs (paper.md §14).
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import (
    Parts,
    Sizes,
    lagrangian_objective,
    reward_objective,
)
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """K rounds over the bonus of the pairs so far; answers are compared with the baseline's as they come."""
    parts.prepare()
    journal, trainer, rollout, feedback = parts.journal, parts.trainer, parts.rollout, parts.feedback
    dual, prompts, preferences, explorer = parts.dual, parts.prompts, parts.preferences, parts.own
    for _ in journal.rounds(sizes.rounds):
        bonus = explorer.loss_bonus("reward", preferences.reward, preferences.labelled)
        policy = trainer.fit(bonus.of(reward_objective(reference, sizes.beta)), preferences.reward)
        for constraint, multiplier in dual.multipliers.items():
            rows = preferences.cost_of(constraint)
            bonus = explorer.loss_bonus("cost", rows, preferences.labelled)
            policy = trainer.fit(bonus.of(lagrangian_objective(policy, multiplier, sizes.beta)), rows)
        rollout.publish(policy)
        asked, paired = prompts.draw(sizes.responses), prompts.draw(sizes.pair_prompts)
        answers = rollout.sample(asked, policy, paired, sizes.answers_each)
        parts.limits.open(answers)
        pairs = explorer.choose(rollout.candidates(paired, policy))  # y ~ pi_k, y' ~ pi_base
        labelled = feedback.compare(pairs)
        parts.limits.step(answers)
        preferences.extend(labelled)
        explorer.update(pairs)
    return UniformMixture(tuple(journal.policies))
