"""PeCAN (docs/methods.md): as MoCAN, with the implicit scores of two DPO policies instead of reward and cost models.

    r = beta log(helpful/reference),  c = -beta log(harmless/reference) + constant

Two policies are fitted before, one on each label. Their cost has no zero, so the limit is an improvement over the
reference; the constant puts the reference's mean cost where labels of its answers say it is, which makes that
improvement the limit d of all other methods.

Departures: pseudo-label logits carry the factor beta (the published code omits it there but not in the dual: labels ten
times sharper than the model at beta = 0.1); the improvement asked for follows from d.
"""

from __future__ import annotations

from pddpo_lab.methods.scoring import Scorer, scores_of
from pddpo_lab.methods.settings import OneShotSettings
from pddpo_lab.methods.stages import weighed_objective
from pddpo_ray.algorithms.stages import Parts, Sizes, observe, reward_objective, single_objective
from pddpo_ray.records import PolicyVersion, Response, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """Two policies, the multiplier, pseudo-labels on the offline pairs, one fit."""
    parts.prepare()
    given = sizes.own(OneShotSettings).multiplier
    answers = [] if given else scores_of(parts).reference_answers(reference)
    scorer = policy_scorer(parts, sizes, reference, answers)
    multiplier = given or scores_of(parts).explicit_multiplier(scorer, answers)
    pairs = [item.pair for item in parts.preferences.labelled]
    for _ in parts.journal.rounds(sizes.rounds):
        rows = scores_of(parts).pseudo_labels(pairs, scorer, multiplier)
        policy = parts.trainer.fit(weighed_objective(reference, multiplier, sizes), rows)
        observe(parts, policy, sizes, multiplier=multiplier)
    return UniformMixture(tuple(parts.journal.policies))


def policy_scorer(parts: Parts, sizes: Sizes, reference: PolicyVersion, answers: list[Response]) -> Scorer:
    """Scores of a helpful and a harmless policy; `answers` of the reference set the cost's zero (none: no zero)."""
    helpful = parts.trainer.fit(reward_objective(reference, sizes.beta), parts.preferences.reward)
    harmless = parts.trainer.fit(single_objective(reference, sizes.beta), parts.preferences.cost)
    scorer = scores_of(parts).policies(reference, helpful, harmless)
    if not answers:
        return scorer
    fresh = parts.rollout.sample(parts.prompts.draw(sizes.responses), reference, each=sizes.answers_each)
    parts.limits.open(fresh)
    return scores_of(parts).anchored(scorer, answers, parts.limits.estimates(fresh)[0].value)
