"""MoCAN (docs/methods.md): the multiplier from the reference's answers alone, then one DPO on pseudo-labels.

    lambda = argmin over lambda >= 0 of D(lambda), from answers of the reference scored by reward and cost models
    P(first chosen) = sigmoid(w(first) - w(second)),  w = r - lambda c;  drawn once per pair;  DPO against the reference

Departures: models are linear in the reference's features (in a table: box maximum likelihood), the cost model's zero
coming from one safety label per offline answer; templates and thresholds are the same in all steps; the descent stays
below the upper end of the multiplier, where the original may run away if few answers keep the limit.
"""

from __future__ import annotations

from pddpo_lab.methods.scoring import scores_of
from pddpo_lab.methods.settings import OneShotSettings
from pddpo_lab.methods.stages import unsafe_bits, weighed_objective
from pddpo_ray.algorithms.stages import Parts, Sizes, observe
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """Models, the multiplier, pseudo-labels on the offline pairs, one fit."""
    parts.prepare()
    scorer = scores_of(parts).models(parts.preferences.labelled, unsafe_bits(parts))
    multiplier = sizes.own(OneShotSettings).multiplier
    if multiplier is None:
        multiplier = scores_of(parts).explicit_multiplier(scorer, scores_of(parts).reference_answers(reference))
    pairs = [item.pair for item in parts.preferences.labelled]
    for _ in parts.journal.rounds(sizes.rounds):
        rows = scores_of(parts).pseudo_labels(pairs, scorer, multiplier)
        policy = parts.trainer.fit(weighed_objective(reference, multiplier, sizes), rows)
        observe(parts, policy, sizes, multiplier=multiplier)
    return UniformMixture(tuple(parts.journal.policies))
