"""Canaries of a delivery: what an engine that computes with other weights says of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pddpo_ray.errors import RunError
from pddpo_ray.rollout.delivery_check import check_canaries

EXPECTED = np.array([-12.0, -3.0])
LENGTHS = [8, 2]


def difference(*scores: float) -> float:
    return check_canaries(np.array(scores), EXPECTED, LENGTHS, 1e-4, subject="engine e, ", stop=" Stopped.")


def test_the_largest_difference_is_per_token() -> None:
    """8e-4 over 8 tokens is 1e-4 each, 1e-4 over 2 tokens 5e-5."""
    assert difference(-12.0 + 7.9e-4, -3.0 - 1e-4) == pytest.approx(7.9e-4 / 8)


@pytest.mark.parametrize("scores", [(-12.0 + 9e-4, -3.0), (-12.0, -3.0 - 3e-4), (math.nan, -3.0)])
def test_an_engine_that_computes_with_other_weights_is_refused(scores: tuple[float, float]) -> None:
    with pytest.raises(RunError, match=r"engine e, canary log-probabilities differ by .*computes with other weights"):
        difference(*scores)
