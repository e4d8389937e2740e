"""Which optimiser settings a fit gets."""

from __future__ import annotations

import pytest

from pddpo_ray.config import TrainerConfig
from pddpo_ray.config.sections.trainer import EveryFit
from pddpo_ray.parts.fitting import FitPlan


def test_learning_rates_fall_linearly_over_the_rounds() -> None:
    first = {"learning_rate": 2.0}
    trainer = TrainerConfig(fit=EveryFit(learning_rate=1.0), stages={"first_reward": first, "first_cost": first})
    plan = FitPlan(trainer.model_copy(update={"last_rate": 0.2}), rounds=5)
    rates = [plan.settings("cost", False, number).learning_rate for number in range(6)]
    assert rates == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.4, 0.2]), "before the first round as in it"
    assert plan.settings("reward", True, 1).learning_rate == 2.0
    assert FitPlan(trainer).settings("cost", False, 9).learning_rate == 1.0


def test_what_the_trainer_says_about_all_fits_reaches_each_of_them() -> None:
    trainer = TrainerConfig(micro_pairs=3, activation_gib=0.5, support=0.25)
    for stage, first, steps in (("reward", True, 200), ("cost", True, 60), ("reward", False, 30), ("cost", False, 30)):
        settings = FitPlan(trainer).settings(stage, first, 1)  # type: ignore[arg-type]
        assert (settings.steps, settings.micro_pairs, settings.activation_gib) == (steps, 3, 0.5)
        assert settings.support == trainer.support
