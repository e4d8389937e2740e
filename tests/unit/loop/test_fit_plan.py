"""Which optimiser settings a fit gets."""

from __future__ import annotations

import pytest

from pddpo_ray.contracts import FitSettings
from pddpo_ray.loop.fitting import FitPlan


def test_learning_rates_fall_linearly_over_the_rounds() -> None:
    first, later = FitSettings(learning_rate=2.0), FitSettings(learning_rate=1.0)
    plan = FitPlan(later, later, first, first, last_rate=0.2, rounds=5)
    rates = [plan.settings("cost", False, number).learning_rate for number in range(6)]
    assert rates == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.4, 0.2]), "before the first round as in it"
    assert plan.settings("reward", True, 1).learning_rate == 2.0
    assert FitPlan(later, later, first, first).settings("cost", False, 9).learning_rate == 1.0
