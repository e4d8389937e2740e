"""What a method is, and those that ship."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

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
    reference_answers: str | None = None
    """`module:function` of the recipe and its number of prompts: how many answers of the reference it draws before
    round 1, by what they are for."""
    check: str | None = None
    """`module:function` of the recipe that raises ValueError where the method cannot run it."""


class AdalagSettings(Strict):
    """Of PD-DPO with an adaptive multiplier."""

    window: int = Field(128, ge=2)
    """The newest labelled answers, over rounds, whose mean cost moves the multiplier."""


O_PD_DPO = Method("pddpo_ray.algorithms.o_pd_dpo:run", online=True, several=True, stated=True)
PD_DPO = Method("pddpo_ray.algorithms.pd_dpo:run", several=True, stated=True)
PD_DPO_FIXED = Method("pddpo_ray.algorithms.pd_dpo_fixed:run", multiplier="given", several=True, stated=True)
PD_DPO_ADALAG = Method("pddpo_ray.algorithms.pd_dpo_adalag:run", AdalagSettings, stated=True)
DPO_HARMLESS = Method("pddpo_ray.algorithms.dpo_harmless:run", one_round=True, multiplier="none")
DPO_HELPFUL = Method("pddpo_ray.algorithms.dpo_helpful:run", one_round=True, multiplier="none")
