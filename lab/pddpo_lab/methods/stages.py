"""What several of these methods do: safety bits of the offline answers, and DPO on pseudo-labels."""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, single_objective
from pddpo_ray.records import HARM, Objective, PolicyVersion, Verdict


def weighed_objective(reference: PolicyVersion, multiplier: float, sizes: Sizes) -> Objective:
    """Plain DPO on preferences drawn from reward - multiplier * cost (pseudo-labels)."""
    return single_objective(reference, sizes.beta, score_max=sizes.reward_max + multiplier * sizes.cost_max)


def unsafe_bits(parts: Parts) -> dict[str, bool]:
    """One safe-or-unsafe label of every answer in the pairs so far, by the answer's id. -> {id: unsafe}

    Called before the first round: the labels belong to the data, not to a round's cost estimate.
    """
    pairs = [item.pair for item in parts.preferences.labelled]
    answers = {answer.id: answer for pair in pairs for answer in (pair.first, pair.second)}
    labelled = parts.feedback.safety(list(answers.values()), 1, HARM)
    # a label that a person did without counts as unsafe
    return {item.response.id: item.labels[0] is not Verdict.SAFE for item in labelled}
