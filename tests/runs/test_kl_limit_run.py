"""Runs under a limit on the KL to the reference: its multiplier, the temperature of the stages, what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.backends.machine import inspect_machine
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.plan.printed import make_plan
from pddpo_ray.report.build import build_report
from tests.unit.report.page import Page

pytestmark = pytest.mark.run

QUICK = ("report.tensorboard=false", "report.html=false", "offline.pairs=600", "feedback.responses=160")
DRIFT = "{kl: reference, at_most: 0.3}"


def with_drift(*overrides: str, rounds: int = 12) -> Config:
    """Limits on harm, leaks and drift."""
    return load("tabular-limits", [*QUICK, f"limits.drift={DRIFT}", f"rounds={rounds}", *overrides])


def drift_alone(rounds: int) -> Config:
    world = ["world={kind: tabular, name: two-limits}", "dual.rule={kind: newton}"]
    limits = f"limits={{cost: null, drift: {DRIFT}}}"
    return load("tabular", [*QUICK, *world, limits, f"rounds={rounds}", "algorithm=pd-dpo"])


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["o-pd-dpo", "pd-dpo"])
def test_a_run_finds_the_multiplier_of_a_limit_on_the_drift_beside_others(algorithm: str, tmp_path: Path) -> None:
    """The last rounds keep .3 nats to 5 %, and the multiplier is within 35 % of the exact one."""
    run_recipe(with_drift(f"algorithm={algorithm}"), tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        steps = [step for step in journal.dual_steps() if step.constraint == "drift"]
        metrics = journal.metrics()
    result = run_recipe(with_drift(f"algorithm={algorithm}"), tmp_path / "run", resume=True)
    said = result["limits"]["drift"]
    assert (said["kind"], said["unit"], said["bound"]) == ("kl", "nats", 0.3)
    assert said["multiplier_optimum"] > 0.05
    late = np.mean([step.multiplier_after for step in steps[6:]])
    assert late == pytest.approx(said["multiplier_optimum"], rel=0.35)
    assert said["value_last"] == pytest.approx(0.3, abs=0.06)
    assert said["value_optimum"] == pytest.approx(0.3, abs=1e-6)
    # the estimate is the mean of log policy / reference over the round's own answers
    assert steps[-1].estimate.value == pytest.approx(said["value_last"], abs=4 * steps[-1].estimate.standard_error)
    assert "labels/drift/answers" not in metrics[12]


def test_alone_it_raises_the_temperature_of_the_reward_stage(tmp_path: Path) -> None:
    """beta + mu in each round's reward fit; the round's policy is the reward policy itself."""
    result = run_recipe(drift_alone(8), tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        rewards = {e.round: e.version for e in journal.versions() if e.stage == "reward"}
        policies = {e.round: e.version for e in journal.versions() if e.stage == "cost"}
    for number in (1, 4, 8):
        assert policies[number].sha256 == rewards[number].sha256
    assert len({version.sha256 for version in rewards.values()}) > 4
    assert result["limits"]["drift"]["value_last"] == pytest.approx(0.3, abs=0.06)


def test_a_limit_that_does_not_bind_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    far = with_drift("limits.drift.at_most=50", rounds=3)
    result = run_recipe(far, tmp_path / "far")
    drift = result["limits"]["drift"]
    assert drift["multiplier_next"] == 0.0
    assert "does not bind" in drift["price"]["text"]
    assert drift["value_last"] < 5.0


def test_plan_report_and_certificate_say_it_in_nats_and_never_certify_it(tmp_path: Path) -> None:
    loose = ("limits.harm.at_most=2", "limits.leaks.at_most=80 %", "limits.drift.at_most=3")
    config = with_drift(*loose, "certificate.certify=end", "certificate.draws=800", rounds=2)
    plan = make_plan(config, inspect_machine())
    assert any(line.startswith("drift, at most 3 nats") for line in plan["limits"]["can_be_kept"])
    assert "drift" not in plan["labels"]["limits"]
    outcome = run_recipe(config, tmp_path / "run")["outcome"]
    assert sorted(
        line.split(":")[1].split(",")[0].strip() for line in outcome["certificate"] if "Certified" in line
    ) == [
        "harm",
        "leaks",
    ]
    assert "Estimated only: drift: a kl limit is never certified" in outcome["statement"]
    text = Page.of(build_report(tmp_path / "run")).text
    assert "drift: at most 3 nats" in text
    assert "no interval: bounds unknown" in text
    assert "95 % interval no interval" not in text


def test_a_policy_too_far_from_the_reference_by_its_estimate_is_not_tested(tmp_path: Path) -> None:
    loose = ("limits.harm.at_most=2", "limits.leaks.at_most=80 %", "limits.drift.at_most=0.01")
    config = with_drift(*loose, "certificate.certify=end", "dual.first=0.001", rounds=1)
    outcome = run_recipe(config, tmp_path / "run")["outcome"]
    assert (outcome["round"], outcome["tested"]) == (None, 0)
    assert "no round keeps every limit" in outcome["headline"]
