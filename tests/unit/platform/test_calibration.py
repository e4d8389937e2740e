"""Seconds of a plan: what follows from measured speeds, and that they can be measured."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.plan import calibration
from pddpo_ray.plan.calibration import Speeds, measure, seconds_of


def test_seconds_are_counts_over_speeds_and_scorers_fit_as_fast_as_the_policy() -> None:
    work = {
        "answers": {"cost": 30, "candidate": 10},
        "features": 6,
        "log_probs": 8,
        "fitted_pairs": 5,
        "scorer_pairs": 7,
    }
    speeds = Speeds(answers=4.0, features=3.0, log_probs=2.0, fitted_pairs=0.5)
    assert seconds_of(work, speeds) == pytest.approx(40 / 4 + 6 / 3 + 8 / 2 + 12 / 0.5)


def test_a_measurement_belongs_to_a_plan() -> None:
    done = CliRunner().invoke(app, ["train", "text-world", "--calibrate"])
    assert isinstance(done.exception, UserError)
    assert "add --dry-run" in str(done.exception)


def test_a_table_is_not_measured() -> None:
    with pytest.raises(UserError, match="other policies take no time"):
        measure(load("tabular"))


@pytest.mark.slow
def test_speeds_of_a_small_model_are_measured_with_the_recipes_own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SAMPLING_S", 0.2), ("FIT_S", 0.1), ("BATCH", 8)):
        monkeypatch.setattr(calibration, name, value)
    config = load("text-world", ["rollout={engine: transformers, max_tokens: 8, canaries: 2}", "trainer.threads=1"])
    speeds = measure(config)
    assert min(astuple(speeds)) > 0
