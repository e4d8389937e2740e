"""What the policy is, besides its weights."""

from __future__ import annotations

from pydantic import Field

from pddpo_ray.config.sections.section import Strict


class PolicyConfig(Strict):
    """What the policy is, besides its weights."""

    temperature: float = Field(1.0, gt=0)
    """The policy is softmax(logits / temperature), with nothing cut off; so is the reference. Training, sampling,
    divergences and estimates are about it, and it is what an endpoint answers with by default. Other temperatures
    (`rollout.proposal_temperature`) are relative to it. A small pretrained model rambles at 1.0 and speaks at 0.7."""
