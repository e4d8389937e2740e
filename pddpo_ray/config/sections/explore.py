"""Which answers are labelled for preferences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pddpo_ray.config.registered import Named, SettingsOf, with_settings
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.registry import Extension

MAKERS = "pddpo_ray.exploration.bonuses"


@dataclass(frozen=True)
class Bonus(Extension):
    """What says how little is known of an answer. Its code takes its settings and an
    `exploration.bonuses.BonusContext` and returns an `exploration.alternatives.Uncertainty`."""


ELLIPTICAL = Bonus(f"{MAKERS}:elliptical")
THEOREM = Bonus(f"{MAKERS}:theorem")
GREEDY = PROPOSALS = OFF = Bonus(f"{MAKERS}:none")


class ExploreConfig(Strict):
    """Which answers get labelled for preferences. The exploring policy is never served."""

    bonus: Annotated[str, Named("bonuses")] = "elliptical"
    """elliptical: posterior standard deviations of frozen features. theorem: the same held within a round, drawn from
    the optimistic policy itself; it lists every answer, as tables can (docs/paper.md). greedy: the
    candidates that the policy's own scores rank first. proposals: any candidate, half of which are the reference's.
    off: answers of the policy as they come. Of pddpo-lab: simhash, counts of hashed features, without linear algebra;
    thompson, one random guess a round in place of a bonus (docs/exploration.md)."""
    settings: Annotated[dict[str, Any], SettingsOf("bonuses")] = Field({})
    """Settings of a bonus from an installed package."""
    loss: Literal["plain", "xpo"] = "plain"
    """xpo: the policy's own loss carries optimism, alpha times its mean log-probability of the baseline's answers. It
    needs no features and never switches off; the policy of a round is then optimistic itself."""
    alpha: float = Field(1e-3, gt=0)
    """Weight of the xpo term against the mean loss of a pair; long answers want less (1e-5 for language models)."""
    prompts: int = Field(24, ge=1)
    """Prompts per round that get candidates."""
    picks: int = Field(6, ge=1)
    """Pairs per prompt, chosen one after another with the design matrix updated in between."""
    keep: int | None = Field(None, ge=1)
    """Number of a round's chosen pairs that are labelled: those that teach most by the exploration norm, and a random
    quarter; null: all of them."""
    scale: float = Field(1.5, gt=0)
    """k: bonus in posterior standard deviations (1 to 2 works everywhere that was tried)."""
    cost_scale: float = Field(1.0, ge=0)
    """Factor on the cost bonus; 0: only the reward's uncertainty is explored."""
    information: Annotated[float, Field(gt=0)] | Literal["fitted"] = 0.25
    """w: Fisher information of one comparison, at most 1/4. fitted: sigma'(m) of each at its fitted difference m, whose
    inverse is the Laplace covariance; 1/4 gives a lower bound of it (docs/paper.md)."""
    rank: int = Field(128, ge=1)
    """q: dimensions kept by the whitening."""
    calibration: int = Field(2048, ge=16)
    """Answers of the reference on which the whitening is fitted, once."""
    comparator: Literal["baseline", "max_info"] = "baseline"
    """The other answer of a pair: one of the baseline's, or the most informative candidate."""
    baseline_answers: int = Field(8, ge=4)
    """Answers of the baseline per prompt: they centre the features and serve as comparators."""
    weights: Literal["exact", "bonus_only"] = "exact"
    """Weights of the resampling: with log-probability ratios, or for long answers without them, where a
    proposal's answer counts a fifth of a policy's."""

    @model_validator(mode="before")
    @classmethod
    def settings_are_the_bonus(cls, section: Any) -> Any:
        """The bonus's own class checks `settings` and fills in what they leave out."""
        return with_settings(section, "bonuses", "bonus", "explore.settings", default="elliptical")
