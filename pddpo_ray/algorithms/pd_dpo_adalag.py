"""PD-DPO-adaLag (paper.md §8): a trained PD-DPO takes one more optimiser step per round, as does its multiplier.

Round 1 trains both stages at the first multiplier. Every round ends with fresh answers, the mean cost of the newest
`method.window` answers, stale ones among them, and one step of log(multiplier); the next round makes one optimiser step
at the new multiplier. So within an iteration the dual step comes before the primal one. The last policy is the result.

Departures from the original: labels give the costs, not a cost model (and so the limit is on the labels' scale); one
window for the run, not one per device; the multiplier has a floor, for the rule freezes near 0; each single step has a
new optimiser and so moves by signs, unless `trainer.moments` is `carried`. In a table a policy is the exact minimiser.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, reward_fits
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One reward fit, one full cost fit, then rounds of a dual step and a cost step; the last policy alone."""
    parts.prepare()
    reward_policy = reward_fits(parts, reference)
    for _ in parts.journal.rounds(sizes.rounds):
        policy = parts.limits.stages(parts.trainer, parts.preferences, reward_policy())
        parts.rollout.publish(policy)
        answers = parts.rollout.sample(parts.prompts.draw(sizes.responses), policy, each=sizes.answers_each)
        parts.limits.open(answers)
        parts.limits.step(answers)  # by the newest answers of the window
    return UniformMixture(tuple(parts.journal.policies[-1:]))
