"""A method: O-PD-DPO that explores in some rounds alone, `algorithm=sparing method.every=2`."""

from __future__ import annotations

from pydantic import Field

from pddpo_ray.algorithms.stages import Parts, Sizes, fit_reward, learn_from
from pddpo_ray.config.sections.method import Method
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.records import PolicyVersion, UniformMixture


class Sparing(Strict):
    """When it explores."""

    every: int = Field(2, ge=1)
    """Rounds 1, 1 + every, 1 + 2 every, ... collect new pairs."""


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """K rounds: fit, verify, sample, explore in every n-th one, label, move the multiplier."""
    parts.prepare()
    settings = sizes.own(Sparing)
    for number in parts.journal.rounds(sizes.rounds):
        policy = parts.limits.stages(parts.trainer, parts.preferences, fit_reward(parts, reference))
        parts.rollout.publish(policy)
        answers = parts.rollout.sample(parts.prompts.draw(sizes.responses), policy, each=sizes.answers_each)
        parts.limits.open(answers)
        if (number - 1) % settings.every == 0:
            paired = parts.prompts.draw(sizes.pair_prompts)
            pairs = parts.exploration.choose(parts.rollout.candidates(paired, policy))
            learn_from(parts, pairs)
            parts.exploration.update(pairs)
        parts.limits.step(answers)
    return UniformMixture(tuple(parts.journal.policies))


SPARING = Method("pddpo_politeness.method:run", Sparing, online=True)
