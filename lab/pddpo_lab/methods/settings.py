"""Settings of the methods, the answers of the reference that they draw, and the recipes that they cannot run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pddpo_ray.config.recipe import Config
from pddpo_ray.config.sections.model import LoraParameters
from pddpo_ray.config.sections.section import Strict


class SafeDpoSettings(Strict):
    """Of SafeDPO."""

    margin: float = Field(10.0, ge=0)
    """D, what a safe answer must lead an unsafe one by in the logit (it is not multiplied by beta)."""


class PSacpoSettings(Strict):
    """Of P-SACPO."""

    share: float = Field(0.5, gt=0, lt=1)
    """q, share of the policy after both stages in the merged weights; the rest is the reward policy's."""


class ExplicitDualSettings(Strict):
    """Of methods that minimise the explicit dual."""

    answers: int = Field(128, ge=2)
    """Answers of the reference per prompt on which the explicit dual is minimised."""


class OneShotSettings(ExplicitDualSettings):
    """Of MoCAN and PeCAN."""

    multiplier: float | None = Field(None, gt=0)
    """The multiplier, given; null: found by minimising the explicit dual."""


class CaidSettings(ExplicitDualSettings):
    """Of CAID."""

    rate: float = Field(1.0, gt=0)
    """Size of its dual step per round."""
    scores: Literal["models", "policies"] = "models"
    """Scores from fitted reward and cost models, or from the two policies of a DPO fit on each label."""


class PpoSettings(Strict):
    """Of proximal policy optimisation, with two critics or with groups of answers in their place. Its batch of a round
    are feedback.responses answers."""

    kl: float = Field(0.1, gt=0)
    """kappa: weight of the divergence from the reference per token, in both streams. The policy that it leads to has
    beta = (1 + multiplier) kappa."""
    epochs: int = Field(1, ge=1)
    """Passes over a round's answers."""
    batch: int = Field(32, ge=1)
    """Answers per optimiser step."""
    learning_rate: float = Field(1e-5, gt=0)
    """Of the policy, constant."""
    critic_learning_rate: float = Field(5e-6, gt=0)
    """Of both critics, constant."""
    weight_decay: float = Field(0.01, ge=0)
    """Of the policy."""
    critic_weight_decay: float = Field(0.1, ge=0)
    """Of both critics."""
    clip: float = Field(0.2, gt=0, lt=1)
    """Probability ratios beyond 1 +- clip earn nothing more."""
    value_clip: float = Field(5.0, gt=0)
    """Largest distance of a value from the one before the round's update that still changes the loss."""
    score_clip: float = Field(50.0, gt=0)
    """Bound of every reward and cost of a token."""
    discount: float = Field(1.0, gt=0, le=1)
    """gamma, per token."""
    trace: float = Field(0.95, ge=0, le=1)
    """lambda of the generalised advantage estimate, per token."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    window: int = Field(128, ge=2)
    """The newest answers, over rounds, whose mean cost moves the multiplier."""


class GroupSettings(PpoSettings):
    """Of constrained GRPO."""

    group: int = Field(8, ge=2)
    """G, answers to each prompt; each is compared with the mean of the others."""


def for_the_dual(config: Config, prompts: int) -> dict[str, int]:
    """Answers on which MoCAN or CAID minimises the explicit dual; policies as scores want some more, whose labels set
    the zero of their cost."""
    settings = config.method_settings
    assert isinstance(settings, ExplicitDualSettings)
    if isinstance(settings, OneShotSettings) and settings.multiplier is not None:
        return {}
    wanted = {"dual": prompts * settings.answers}
    by_policies = isinstance(settings, CaidSettings) and settings.scores == "policies"
    return wanted | first_batch(config, prompts) if by_policies else wanted


def for_the_dual_by_policies(config: Config, prompts: int) -> dict[str, int]:
    """The same of PeCAN, whose scores are policies."""
    wanted = for_the_dual(config, prompts)
    return wanted | first_batch(config, prompts) if wanted else {}


def first_batch(config: Config, prompts: int) -> dict[str, int]:
    """A round's answers of the reference: the first update of a policy gradient learns from them, and their labels set
    the zero of a cost by policies."""
    return {"cost": config.feedback.responses}


def gradients_are_possible(config: Config) -> None:
    """Raises ValueError where policy gradients cannot be taken, or groups of answers do not fill the batch."""
    if config.trainer.engine != "torch" or isinstance(config.model.parameters, LoraParameters):
        raise ValueError(f"algorithm {config.algorithm} needs trainer.engine=torch and model.parameters.kind=full")
    settings = config.method_settings
    if isinstance(settings, GroupSettings) and config.feedback.responses % settings.group:
        raise ValueError(
            f"feedback.responses={config.feedback.responses} is no multiple of method.group={settings.group}:"
            f" algorithm {config.algorithm} samples whole groups of answers to a prompt"
        )
