"""Settings of single methods, PPO-Lagrangian's among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from pddpo_ray.config.registered import SettingsOf
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.registry import Extension


@dataclass(frozen=True)
class Method(Extension):
    """An algorithm. Its code takes `algorithms.stages.Parts`, `algorithms.stages.Sizes` (whose `settings` are its own,
    checked) and the reference, and runs the rounds that are left.

    `Method("my_package.method:run", settings=MySettings, online=True)`
    """

    online: bool = False
    """Whether rounds collect new preferences, so that it has an explorer."""
    optimistic: bool = False
    """Whether its policies carry the bonus themselves: then their own answers are compared, without proposals."""
    one_round: bool = False
    multiplier: Literal["moves", "given", "none"] = "moves"
    """moves: by the dual's rule. given: once, or by the method itself; the rule is `fixed`. none: there is none."""
    several: bool = False
    """Whether it has a cost stage for each of several limits that feedback labels."""
    stated: bool = False
    """Whether it holds limits of every kind (`limits:`); others hold one limit on the paper's cost."""
    scored: bool = False
    """Whether its limit is on the scores of a cost model, which nothing clips, not on labels of answers."""
    parts: str | None = None
    """`module:function` of parts of its own, called with the recipe, its backends, the parts of the run and the first
    multiplier's state; a method has them as `parts.own`, and an explorer among them is the run's."""
    whole: bool = False
    """Whether it makes policies whose weights no adapter of its fits' rank holds."""
    policy_gradient: bool = False
    """Whether it updates the policy by clipped steps on its own scored answers, not by preference fits."""


class MethodConfig(Strict):
    """Settings of single compared methods; a method looks at its own alone."""

    settings: Annotated[dict[str, Any], SettingsOf("methods")] = Field({})
    """Settings of a method from an installed package."""
    group: int = Field(8, ge=2)
    """c-grpo: G, answers to each prompt; each is compared with the mean of the others."""

    margin: float = Field(10.0, ge=0)
    """safe-dpo: D, what a safe answer must lead an unsafe one by in the logit (it is not multiplied by beta)."""
    share: float = Field(0.5, gt=0, lt=1)
    """p-sacpo: q, share of the policy after both stages in the merged weights; the rest is the reward policy's."""
    window: int = Field(128, ge=2)
    """pd-dpo-adalag: the newest labelled answers, over rounds, whose mean cost moves the multiplier."""
    answers: int = Field(128, ge=2)
    """mocan, pecan, caid: answers of the reference per prompt on which the explicit dual is minimised."""
    rate: float = Field(1.0, gt=0)
    """caid: size of its dual step per round."""
    multiplier: float | None = Field(None, gt=0)
    """mocan, pecan: the multiplier, given; null: found by minimising the explicit dual."""
    scores: Literal["models", "policies"] = "models"
    """caid: scores from fitted reward and cost models, or from the two policies of a DPO fit on each label."""


class PpoConfig(Strict):
    """safe-rlhf, c-grpo: proximal policy optimisation with two critics, or with groups of answers in their place
    (method.group). Its batch of a round are feedback.responses answers."""

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


O_PD_DPO = Method("pddpo_ray.algorithms.o_pd_dpo:run", online=True, several=True, stated=True)
PD_DPO = Method("pddpo_ray.algorithms.pd_dpo:run", several=True, stated=True)
PD_DPO_FIXED = Method("pddpo_ray.algorithms.pd_dpo_fixed:run", multiplier="given", several=True, stated=True)
PD_DPO_ADALAG = Method("pddpo_ray.algorithms.pd_dpo_adalag:run", stated=True)
DPO_HARMLESS = Method("pddpo_ray.algorithms.dpo_harmless:run", one_round=True, multiplier="none")
DPO_HELPFUL = Method("pddpo_ray.algorithms.dpo_helpful:run", one_round=True, multiplier="none")
