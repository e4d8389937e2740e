"""A rule of the dual that looks at the estimate's sign alone: `dual.rule={kind: signs, step: 0.2}`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import Field

from pddpo_ray.config.sections.dual import RuleKind
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.multipliers.dual import LimitState, Memory, RuleContext


class Signs(Strict):
    """How far one sign moves the multiplier."""

    step: float = Field(0.1, gt=0)
    """The first step, as a share of rho; step k is 1/sqrt(k) of it."""


@dataclass(frozen=True)
class BySign:
    """lambda + step sign(c~ - d) / sqrt(k). Satisfies theory.dual.Rule."""

    step: float

    def next(self, constraint: LimitState, estimate: CostEstimate) -> tuple[float, float, Memory]:
        size = self.step / math.sqrt(constraint.steps + 1)
        moved = math.copysign(size, constraint.excess(estimate))
        return constraint.multiplier + moved, size, constraint.memory


def signs(settings: Signs, run: RuleContext) -> BySign:
    """The rule for a run."""
    return BySign(settings.step * run.rho)


SIGNS = RuleKind("pddpo_politeness.dual_rule:signs", Signs)
