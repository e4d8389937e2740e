"""PD-DPO-adaLag (paper.md §8): a trained PD-DPO goes on with one optimiser step per round, the multiplier with it.

Round 1 trains both stages at the first multiplier. Every round ends with fresh answers, the mean cost of the newest
`method.window` answers, stale ones among them, and one step of log(multiplier); the next round makes one optimiser step
at the new multiplier. So within an iteration the dual step comes before the primal one. The last policy is the result.

Departures from the original: labels give the costs, not a cost model (and so the limit is on the labels' scale); one
window for the run, not one per device; the multiplier has a floor, for the rule freezes near 0. A table knows no
optimiser step: there each round's policy is the exact minimiser.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, lagrangian_chain, reward_fits
from pddpo_ray.records import CostEstimate, PolicyVersion, SafetyLabels, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One reward fit, one full cost fit, then rounds of a dual step and a cost step; the last policy alone."""
    reward_policy = reward_fits(parts, sizes, reference)
    for _ in parts.journal.rounds(sizes.rounds):
        policy = lagrangian_chain(parts, reward_policy(), sizes.beta)
        parts.rollout.publish(policy)
        answers = parts.rollout.sample(parts.prompts.draw(sizes.responses), policy, (), sizes.answers_each)
        if parts.limits is not None:
            parts.limits.step(answers)  # by the newest answers of the window
            continue
        for constraint in parts.dual.multipliers:
            parts.feedback.safety(answers, sizes.labels_each, constraint)
        parts.dual.step([windowed(parts, constraint, sizes.method.window) for constraint in parts.dual.multipliers])
    return UniformMixture(tuple(parts.journal.policies[-1:]))


def windowed(parts: Parts, constraint: str, window: int) -> CostEstimate:
    """Mean cost of the newest labelled answers of all rounds so far: the journal is the window's memory."""
    newest: list[SafetyLabels] = []
    for number in range(parts.journal.round, 0, -1):
        newest = parts.journal.safety(number, constraint) + newest
        if len(newest) >= window:
            break
    return parts.estimate_cost(newest[-window:])
