"""Safe RLHF (docs/methods.md): PPO-Lagrangian on a reward and a cost model, with two critics.

    update:  policy climbs (r - lambda c) / (1 + lambda) - kappa KL(policy || reference) by clipped steps
    dual:    log lambda += rate * lambda * (mean cost of the newest `method.window` answers - d)

Every round updates on the answers of the policy before it, then samples the new one: those answers move the multiplier
and are the next round's batch. So dual and primal steps alternate as in the original. At its fixed point the policy has
beta = (1 + lambda) kappa relative to r - lambda c, so its lambda is not comparable with that of the other methods.

Departures: one window for the run, not one per device; the optimisers begin afresh in every round; no pretraining loss;
the multiplier has a floor under the log rule; critics begin as the reward and cost model (in a table: at zero), whose
pairs and bits are the offline ones; collecting more pairs between versions of the original is left out. One clipped
objective needs no support term: the divergence itself holds the policy on its language.
"""

from __future__ import annotations

from pddpo_lab.methods.settings import PpoSettings
from pddpo_lab.methods.stages import unsafe_bits
from pddpo_ray.algorithms.stages import Parts, Sizes
from pddpo_ray.records import PolicyVersion, Response, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """Models, a first batch of the reference, then rounds of an update and a dual step; the last policy alone."""
    parts.prepare()
    scores, updates = parts.own.scores, parts.own.updates
    scorer, critics = scores.trained(parts.preferences.labelled, unsafe_bits(parts))
    if parts.journal.next_round == 1:
        parts.rollout.publish(reference)
        parts.rollout.sample(parts.prompts.draw(sizes.responses), reference)
    for _ in parts.journal.rounds(sizes.rounds):
        answers = newest_answers(parts, sizes.responses, before=parts.journal.round)
        policy = updates.reinforce(reference, answers, scorer(answers), parts.dual.multiplier, critics)
        parts.rollout.publish(policy)
        parts.rollout.sample(parts.prompts.draw(sizes.responses), policy)
        window = newest_answers(parts, sizes.own(PpoSettings).window, before=parts.journal.round + 1)
        parts.dual.step([scores.cost_of(scorer, window)])
    return UniformMixture(tuple(parts.journal.policies[-1:]))


def newest_answers(parts: Parts, count: int, before: int) -> list[Response]:
    """The newest answers that were sampled for the cost before a round: the journal is the memory."""
    newest: list[Response] = []
    for number in range(before - 1, -1, -1):
        newest = parts.journal.samples(number, "cost") + newest
        if len(newest) >= count:
            break
    return newest[-count:]
