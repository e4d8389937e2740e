"""Temperature and zero of scores: where the likelihood has no slope, and what scores that mislead get."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from pddpo_ray.theory.calibration import temperature, zero_and_temperature


def test_at_the_fitted_line_the_likelihood_has_no_slope() -> None:
    """sum (p - y) = 0 and sum s (p - y) = 0."""
    rng = np.random.default_rng(3)
    scores = 4.0 * rng.normal(size=300)
    unsafe = (rng.random(300) < expit(0.7 * scores - 1.0)).astype(float)
    a, b = zero_and_temperature(scores, unsafe)
    off = expit(a * scores + b) - unsafe
    assert (off.mean(), (scores * off).mean()) == pytest.approx((0.0, 0.0), abs=1e-3)


def test_two_scores_by_hand() -> None:
    """At -1 one label of four says unsafe, at 1 three: a = logit(3/4), b = 0."""
    scores, unsafe = np.repeat([-1.0, 1.0], 4), np.array([1.0, 0, 0, 0, 1, 1, 1, 0])
    assert zero_and_temperature(scores, unsafe) == pytest.approx((logit(0.75), 0.0), abs=1e-4)


def test_scores_that_say_the_wrong_thing_have_no_weight_and_faultless_ones_a_bounded_one() -> None:
    scores = np.array([-2.0, -1.0, 1.0, 2.0])
    assert zero_and_temperature(scores, np.array([1.0, 1.0, 0.0, 0.0])) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert temperature(-np.abs(scores)) == 0.0
    assert 5.0 < temperature(np.abs(scores)) <= 50.0
