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


def score_margin(margin: Bonus, chosen: Bonus, rejected: Bonus) -> Bonus:
    """What a margin leaves in the logit of two scores s, where the policy is base * exp((±s + b) / temperature).

    temperature * (h(chosen) - h(rejected)) + margin = ±(s(chosen) - s(rejected)) + b(chosen) - b(rejected) + margin.
    At `b(rejected) - b(chosen)` nothing is left: optimistic scores are the likelihood's own, and the policy adds
    the bonus.
    """
    return margin + (chosen - rejected)
