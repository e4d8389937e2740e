"""Margins with which a bonus enters a stage's loss (paper.md §9). Floats, arrays or tensors alike, elementwise.

Both stages share one form, because `chosen` is the answer that a stage raises: the better one of a reward pair, the
*cheaper* one of a cost pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Bonus = TypeVar("Bonus", float, NDArray[np.float64], "Tensor")


def bonus_margin(chosen: Bonus, rejected: Bonus) -> Bonus:
    """b(rejected) - b(chosen): with this margin a fit adds the stage's bonus to what it learns. [...], [...] -> [...]

    Reward stage: -(b_r(better) - b_r(worse)); the minimiser's implicit reward is reward + bonus.
    Cost stage: b_c(costlier) - b_c(cheaper); the minimiser's implicit cost is cost - bonus, so uncertain answers are
    assumed cheaper. Nothing is divided by the multiplier (paper.md erratum 1).
    """
    return rejected - chosen


def score_margin(margin: Bonus, chosen: Bonus, rejected: Bonus) -> Bonus:
    """What a margin leaves in the logit of two scores s, where the policy is base * exp((±s + b) / temperature).

    temperature * (h(chosen) - h(rejected)) + margin = ±(s(chosen) - s(rejected)) + b(chosen) - b(rejected) + margin.
    At `bonus_margin` nothing is left: optimistic scores are the likelihood's own, and the policy adds the bonus.
    """
    return margin + (chosen - rejected)
