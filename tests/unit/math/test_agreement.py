"""What counts as agreeing with a label: one rule for floats, arrays and tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pddpo_ray.theory.agreement import TIE, agreement
from pddpo_ray.theory.losses.objectives import preference_loss


def test_agreement_by_hand() -> None:
    differences = [2.0, -2.0, 0.0, 1e-5, -1e-5, math.inf, -math.inf, math.nan]
    expected = [1.0, 0.0, 0.5, 0.5, 0.5, 1.0, 0.0, 0.5]
    assert [agreement(value) for value in differences] == expected
    assert agreement(np.array(differences)).tolist() == expected
    assert agreement(torch.tensor(differences)).tolist() == expected


@given(st.floats(-1000, 1000), st.floats(-1000, 1000))
def test_equal_log_ratios_tie_however_float32_rounds_their_sums(chosen: float, rejected: float) -> None:
    """Both log ratios are exactly 1/3; the four log-probabilities are rounded to float32 before they are subtracted."""
    base = np.array([chosen, rejected])
    ratios = (base + 1 / 3).astype(np.float32) - base.astype(np.float32)
    assert agreement(float(ratios[0] - ratios[1])) == 0.5


@given(st.floats(-5, 5))
def test_the_two_sides_of_a_pair_share_one_success(difference: float) -> None:
    assert agreement(difference) + agreement(-difference) == 1.0


@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_a_tie_is_one_at_every_temperature(temperature: float) -> None:
    """Rounding happens in the log ratios, so the tolerance does too: the cost stage's beta / multiplier has no part."""
    chosen = torch.tensor([0.5 * TIE, 2.0 * TIE])
    _, metrics = preference_loss(chosen, torch.zeros(2), temperature=temperature)
    assert metrics["accurate"].tolist() == [0.5, 1.0]
