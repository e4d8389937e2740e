"""Constrained GRPO (docs/methods.md): a Lagrangian policy gradient whose baseline is the other answers to the prompt.

    sample:  G answers to each prompt from the policy, scored by a reward and a cost model
    update:  policy climbs (r - lambda c) / (1 + lambda) - kappa KL(policy || reference) by clipped steps, where an
             answer's advantage is its own value less the mean of the other G - 1, over the spread of all
    dual:    as Safe RLHF: the mean cost of the newest `method.window` answers moves lambda by the run's rule

No critic. The baseline leaves the answer itself out (RLOO), so it does not bias the gradient. The spread is that of the
whole batch; GRPO's is each group's own, which weighs the divergence anew for every prompt, so that no one beta is left.
"""

from __future__ import annotations

from pddpo_lab.methods.safe_rlhf import newest_answers
from pddpo_lab.methods.settings import GroupSettings
from pddpo_lab.methods.stages import unsafe_bits
from pddpo_ray.algorithms.stages import Parts, Sizes
from pddpo_ray.records import PolicyVersion, Prompt, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """Models, a first batch of the reference, then rounds of an update and a dual step; the last policy alone."""
    parts.prepare()
    scores, updates = parts.own.scores, parts.own.updates
    scorer, _ = scores.trained(parts.preferences.labelled, unsafe_bits(parts))
    if parts.journal.next_round == 1:
        parts.rollout.publish(reference)
        parts.rollout.sample(grouped_prompts(parts, sizes), reference)
    for _ in parts.journal.rounds(sizes.rounds):
        answers = newest_answers(parts, sizes.responses, before=parts.journal.round)
        multiplier, group = parts.dual.multiplier, sizes.own(GroupSettings).group
        policy = updates.reinforce(reference, answers, scorer(answers), multiplier, None, group=group)
        parts.rollout.publish(policy)
        parts.rollout.sample(grouped_prompts(parts, sizes), policy)
        window = newest_answers(parts, sizes.own(GroupSettings).window, before=parts.journal.round + 1)
        parts.dual.step([scores.cost_of(scorer, window)])
    return UniformMixture(tuple(parts.journal.policies[-1:]))


def grouped_prompts(parts: Parts, sizes: Sizes) -> list[Prompt]:
    """A round's prompts, each G times in a row."""
    group = sizes.own(GroupSettings).group
    return [prompt for prompt in parts.prompts.draw(sizes.responses // group) for _ in range(group)]
