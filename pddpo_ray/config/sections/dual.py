"""How the multipliers of the limits move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pddpo_ray.config.registered import Installed, variants
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.errors import nearest_or_all
from pddpo_ray.registry import Extension


class ProjectedRule(Strict):
    """Projected ascent with the theory's step for a fixed number of rounds: eta = first / ((C + |d|) sqrt(K))."""

    kind: Literal["projected"] = "projected"
    """Tag of this variant."""
    curvature_cap: bool = True
    """Cap eta at 2 beta / Var(cost), above which exact steps overshoot."""


class AnytimeRule(Strict):
    """Projected ascent with eta_k = eta_0 / sqrt(k), for an open number of rounds."""

    kind: Literal["anytime"] = "anytime"
    """Tag of this variant."""
    first_step: float | None = Field(None, gt=0)
    """eta_0; null: rho / (C + |d|)."""
    curvature_cap: bool = True
    """Cap eta at 2 beta / Var(cost)."""


class NewtonRule(Strict):
    """Damped Newton: (estimate - d) * beta / Var(cost), within a trust region of 0.5 * upper / sqrt(K). No bound on its
    regret is known, so that the theorem's rate is not shown for it (docs/paper.md)."""

    kind: Literal["newton"] = "newton"
    """Tag of this variant."""
    damping: float = Field(1.0, gt=0, le=1)
    """Share of the Newton step that is taken: less follows the noise of the estimates less."""


class LogRule(Strict):
    """Ascent on log(multiplier), the rule of adaLag. It freezes near 0, hence the floor."""

    kind: Literal["log"] = "log"
    """Tag of this variant."""
    rate: float = Field(0.5, gt=0)
    """Learning rate on the logarithm."""
    floor: float = Field(0.05, gt=0)
    """The multiplier never falls below it."""


class StepwiseRule(Strict):
    """Proportional and integral parts of the excess in standard deviations: what limits inside another trainer move by
    unless they say otherwise (docs/integrations.md)."""

    kind: Literal["stepwise"] = "stepwise"
    """Tag of this variant."""


class FixedRule(Strict):
    """No ascent: the multiplier stays at `first`."""

    kind: Literal["fixed"] = "fixed"
    """Tag of this variant."""


@dataclass(frozen=True)
class RuleKind(Extension):
    """A rule that moves one multiplier. Its code takes its settings and a `theory.dual.RuleContext` and returns a
    `theory.dual.Rule`."""


MAKERS = "pddpo_ray.parts.dual_rules"
PROJECTED = RuleKind(f"{MAKERS}:projected", ProjectedRule)
ANYTIME = RuleKind(f"{MAKERS}:anytime", AnytimeRule)
NEWTON = RuleKind(f"{MAKERS}:newton", NewtonRule)
LOG = RuleKind(f"{MAKERS}:log", LogRule)
STEPWISE = RuleKind(f"{MAKERS}:stepwise", StepwiseRule)
FIXED = RuleKind(f"{MAKERS}:fixed", FixedRule)


class InstalledRule(Installed):
    """A rule of an installed package; its own settings stand beside `kind`."""

    registry, where = "dual_rules", "dual.rule"


if TYPE_CHECKING:
    DualRule = ProjectedRule | AnytimeRule | NewtonRule | LogRule | StepwiseRule | FixedRule | InstalledRule
else:
    DualRule = variants(InstalledRule, ProjectedRule, AnytimeRule, NewtonRule, LogRule, StepwiseRule, FixedRule)


OWN = ("rule", "rho", "upper", "first")
"""What a limit may set for its own multiplier, under `limits.NAME.dual`."""


class DualConfig(Strict):
    """How the multipliers λ of the limits move."""

    cost_max: float = Field(2.0, gt=0)
    """C: costs lie in [-C, C]; labels are clipped to it before the logit."""
    rho: float | None = Field(None, gt=0)
    """Half of the multiplier's upper end; null: the value that the world's oracle states."""
    upper: float | None = Field(None, gt=0)
    """Upper end of the multiplier; null: twice rho."""
    first: float | None = Field(None, ge=0)
    """Multiplier of round 1 (from 0 the projected rule never moves); null: rho, shared by the limits of `limits:`."""
    skip_below: float | None = Field(None, ge=0)
    """At or below it the round's policy is the reward policy itself, without a cost fit; null: 0.1 beta."""
    margin: Literal["certificate"] | Annotated[float, Field(ge=0)] = 0.0
    """The multiplier aims so far below the limit; certificate: where a first candidate's test with `certificate.draws`
    certifies four policies in five, at most half of what can be reached below the limit."""
    rule: DualRule = ProjectedRule()
    """How the multiplier moves."""

    @model_validator(mode="after")
    def first_in_bounds(self) -> Self:
        upper = self.upper if self.upper is not None else (2.0 * self.rho if self.rho is not None else None)
        if upper is not None and self.first is not None and self.first > upper:
            raise ValueError(f"first {self.first} lies outside the multiplier's bounds [0, {upper}]")
        return self

    def of_limit(self, where: str, overrides: Any) -> DualConfig:
        """With a limit's own settings, None: none. Raises ValueError that names the key."""
        if overrides is None:
            return self
        if not isinstance(overrides, dict):
            raise ValueError(
                f"{where}.dual says how its multiplier moves, e.g. {{rule: {{kind: log}}}}; got {overrides}"
            )
        for key in overrides:
            if key not in OWN:
                raise ValueError(f"{where}.dual: unknown key `{key}`{nearest_or_all(str(key), OWN)}")
        try:
            return DualConfig.model_validate({**self.model_dump(), **overrides})
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(str(part) for part in ("dual", *first["loc"]))
            raise ValueError(f"{where}.{at}: {first['msg'].removeprefix('Value error, ')}") from error
