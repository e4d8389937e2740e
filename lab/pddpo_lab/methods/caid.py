"""CAID (docs/methods.md): the one-shot multiplier of MoCAN or PeCAN, improved in a few rounds on the policy's answers.

    lambda_{t+1} = [lambda_t + eta (E_{policy t} c - d)]_+
    then DPO on pseudo-labels of r - lambda c over pairs of the *reference's* answers

`method.scores` chooses models (as MoCAN) or policies (as PeCAN) for r and c. It is the closest relative of PD-DPO:
scores stand where PD-DPO has cost pairs and labels.

Departures: as MoCAN and PeCAN; the step stays below the multiplier's upper end; the first round's policy is the
one-shot one, so the first dual step already sees a policy that was trained for its multiplier.
"""

from __future__ import annotations

from pddpo_lab.methods.pecan import policy_scorer
from pddpo_lab.methods.scoring import Scorer, scores_of
from pddpo_lab.methods.settings import CaidSettings
from pddpo_lab.methods.stages import unsafe_bits, weighed_objective
from pddpo_ray.algorithms.stages import Parts, Sizes, neighbours_of
from pddpo_ray.records import CostEstimate, PolicyVersion, Response, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """Scores, the one-shot multiplier, then T rounds of pseudo-labels, a fit and a dual step; the last policy alone."""
    parts.prepare()
    answers = scores_of(parts).reference_answers(reference)
    scorer = scorer_of(parts, sizes, reference, answers)
    multiplier = resumed(parts, scores_of(parts).explicit_multiplier(scorer, answers))
    settings = sizes.own(CaidSettings)
    pairs = neighbours_of(answers, settings.answers)
    for _ in parts.journal.rounds(sizes.rounds):
        rows = scores_of(parts).pseudo_labels(pairs, scorer, multiplier)
        policy = parts.trainer.fit(weighed_objective(reference, multiplier, sizes), rows)
        parts.rollout.publish(policy)
        fresh = parts.rollout.sample(parts.prompts.draw(sizes.responses), policy)
        estimate = scores_of(parts).cost_of(scorer, fresh)
        rate = 0.0 if scores_of(parts).held else settings.rate
        following = stepped(multiplier, estimate, scores_of(parts).threshold, rate, scores_of(parts).upper)
        parts.dual.observe([estimate], multiplier=multiplier, following=following)
        multiplier = following
    return UniformMixture(tuple(parts.journal.policies[-1:]))


def scorer_of(parts: Parts, sizes: Sizes, reference: PolicyVersion, answers: list[Response]) -> Scorer:
    """Models with safety bits, or two policies."""
    if sizes.own(CaidSettings).scores == "policies":
        return policy_scorer(parts, sizes, reference, answers)
    return scores_of(parts).models(parts.preferences.labelled, unsafe_bits(parts))


def stepped(multiplier: float, estimate: CostEstimate, threshold: float, rate: float, upper: float) -> float:
    """The projected step on the policy's own cost."""
    return min(max(multiplier + rate * (estimate.value - threshold), 0.0), upper)


def resumed(parts: Parts, first: float) -> float:
    """Multiplier of the round that comes next: after the last finished round's step, or the first one."""
    done = [step for step in parts.journal.dual_steps() if step.round < parts.journal.next_round]
    return done[-1].multiplier_after if done else first
