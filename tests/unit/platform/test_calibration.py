"""Seconds of a plan: what follows from measured speeds, and that they can be measured."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.plan import calibration
from pddpo_ray.plan.calibration import Costs, measure, seconds_of, seconds_of_run
from tests.support.tiers import in_full

COSTS = Costs(
    loads=9.0,
    answers=0.25, features=2.0, log_probs=0.5, prepared=1.0, fits=3.0, fitted_pairs=4.0, scorers=5.0, scorer_pairs=6.0,
    scored=0.125, deliveries=7.0, start=20.0,
)  # fmt: skip
WORK = {
    "answers": {"cost": 30, "candidate": 10},
    "features": 6,
    "log_probs": 8,
    "prepared": 3,
    "fits": 2,
    "fitted_pairs": 5,
    "loads": 0,
    "scorers": 0,
    "scorer_pairs": 0,
    "scored": 16,
    "deliveries": 1,
    "tokens": 999,
}


def test_seconds_of_a_stretch_are_counts_times_what_one_takes() -> None:
    assert seconds_of(WORK, COSTS) == pytest.approx(40 / 4 + 12 + 4 + 3 + 6 + 20 + 2 + 7)


def test_a_run_is_its_start_what_comes_before_and_its_rounds() -> None:
    work = {
        "before": {**WORK, "scorers": 2, "scorer_pairs": 4},
        "first_round": WORK,
        "round": {**WORK, "features": 0, "loads": 2},
    }
    found = seconds_of_run(work, COSTS, rounds=5)
    assert found == {"start": 20.0, "before": 98.0, "first_round": 64.0, "round": 70.0, "run": 20 + 98 + 64 + 4 * 70}


def test_a_measurement_belongs_to_a_plan() -> None:
    done = CliRunner().invoke(app, ["train", "text-world", "--calibrate"])
    assert isinstance(done.exception, UserError)
    assert "add --dry-run" in str(done.exception)


def test_a_table_is_not_measured() -> None:
    with pytest.raises(UserError, match="other policies take no time"):
        measure(load("tabular"))


@pytest.mark.slow
@pytest.mark.parametrize("labelled_by", ["world", *in_full("models")])
def test_what_a_small_model_takes_is_measured_with_the_recipes_own_parts(
    monkeypatch: pytest.MonkeyPatch, labelled_by: str
) -> None:
    for name, value in (("SAMPLING_S", 0.2), ("FIT_STEPS", 2), ("BATCH", 8), ("SCORED", 8)):
        monkeypatch.setattr(calibration, name, value)
    models = ["feedback={kind: model}", "scorers.fit={steps: 2, batch_pairs: 4}"] if labelled_by == "models" else []
    small = ["rollout={engine: transformers, max_tokens: 16}", "trainer.threads=1"]
    found = measure(load("text-world", [*small, *models]))
    for costs in (asdict(found.wall), asdict(found.cpu)):
        assert min(costs.values()) >= 0
        assert {name for name, value in costs.items() if value == 0} - {"fits", "fitted_pairs"} <= (
            {"scorers", "scorer_pairs"} if models else {"scorers", "scorer_pairs", "scored"}
        )
        assert (costs["scored"] > 0) == bool(models)
