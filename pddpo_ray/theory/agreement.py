"""When a score agrees with a label: every accuracy, of a fit, a scorer, a release or an evaluation, counts as here."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Numbers = TypeVar("Numbers", float, NDArray[np.float64], "Tensor")

TIE = 1e-3
"""Differences up to this (nats, or units of a score) are ties.

Each side of a difference is a float32 sum or a difference of two. At 1,000 nats one such number is rounded by up to
3e-5, and how passes are packed moves it by up to 1e-4 (`training.log_probs.PROBE_TOLERANCE`). A difference of 1e-3 is
beyond both and says nothing itself: it is a preference of 50.025 % even at temperature 1.
"""


def agreement(difference: Numbers) -> Numbers:
    """1 where the labelled side's score is higher, 0 where it is lower, 1/2 where they tie (or one is nan). [...]"""
    return 0.5 * (1.0 + 1.0 * (difference > TIE) - 1.0 * (difference < -TIE))
