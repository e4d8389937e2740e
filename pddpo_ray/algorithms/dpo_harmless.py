"""DPO-Harmless: DPO on the cost pairs alone, the cheaper answer chosen (docs/methods.md). Reward is not looked at.

Departure: log-probabilities are summed over the whole response. The trainer that the original probably used drops the
first token in which the two answers differ and counts a padded position of the shorter one.
"""

from __future__ import annotations

from pddpo_ray.algorithms.stages import Parts, Sizes, observe, single_objective
from pddpo_ray.records import PolicyVersion, UniformMixture


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """One fit on D^c."""
    parts.prepare()
    for _ in parts.journal.rounds(sizes.rounds):
        policy = parts.trainer.fit(single_objective(reference, sizes.beta), parts.preferences.cost)
        observe(parts, policy, sizes, multiplier=0.0)
    return UniformMixture(tuple(parts.journal.policies))
