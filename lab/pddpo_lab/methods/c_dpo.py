"""C-DPO (docs/methods.md): each round DPO on pseudo-labels of r - lambda c, then a dual step on the policy's own cost.

    lambda <- [lambda + eta (E_policy c - d)]_+        E by the cost model, on fresh answers

Departures: models are linear in the reference's features, their zero from one safety label per offline answer; the same
model prices and trains, as in the original, so no label corrects it in the rounds; the step size is any rule of `dual`.
"""

from __future__ import annotations

from pddpo_lab.methods.scoring import scores_of
from pddpo_lab.methods.stages import unsafe_bits, weighed_objective
from pddpo_ray.algorithms.stages import Parts, Sizes
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """K rounds of a fit on new pseudo-labels and a dual step; the last policy is the original's result."""
    parts.prepare()
    scorer = scores_of(parts).models(parts.preferences.labelled, unsafe_bits(parts))
    pairs = [item.pair for item in parts.preferences.labelled]
    for _ in parts.journal.rounds(sizes.rounds):
        rows = scores_of(parts).pseudo_labels(pairs, scorer, parts.dual.multiplier)
        policy = parts.trainer.fit(weighed_objective(reference, parts.dual.multiplier, sizes), rows)
        parts.rollout.publish(policy)
        answers = parts.rollout.sample(parts.prompts.draw(sizes.responses), policy)
        parts.dual.step([scores_of(parts).cost_of(scorer, answers)])
    return UniformMixture(tuple(parts.journal.policies[-1:]))
