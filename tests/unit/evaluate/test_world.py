"""Exact evaluation of runs on worlds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from typer.testing import CliRunner

from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.cli.main import app
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.evaluate.world import pair_accuracy
from tests.unit.methods.runs import config_of


@pytest.mark.run
def test_a_run_is_evaluated_to_the_numbers_of_its_result(tmp_path: Path) -> None:
    config = config_of("c-dpo")
    result = run_recipe(config, tmp_path / "run")
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)["values"]
    assert [name for name in values if name.startswith("policy-")] == ["policy-1", "policy-2", "policy-3"]
    for point in ("reference", "optimum", "covered_only"):
        assert values[point]["f"] == pytest.approx(result[f"f_{point}"], abs=1e-12)
        assert values[point]["g"] == pytest.approx(result[f"g_{point}"], abs=1e-12)
    for key in ("f", "g", "gap"):
        assert values["policy-3"][key] == pytest.approx(result[f"{key}_last"], abs=1e-12)
        assert values["mixture"][key] == pytest.approx(result[f"{key}_mixture"], abs=1e-12)
    last = values["policy-3"]
    assert last["f"] == pytest.approx(last["helpfulness"] - config.beta * last["kl"])
    assert last["g"] == pytest.approx(-last["harmlessness"] - config.thresholds["cost"])


@pytest.mark.slow
def test_pair_accuracy_of_truth_guess_and_reverse() -> None:
    """The truth reaches what noisy labels allow, a constant score one half, and minus the truth the complement."""
    oracle = trap_world().oracle
    generator = np.random.default_rng(0)
    best = pair_accuracy(oracle.reward, oracle.reward, oracle)
    assert pair_accuracy(np.zeros_like(oracle.reward), oracle.reward, oracle) == pytest.approx(0.5)
    assert pair_accuracy(-oracle.reward, oracle.reward, oracle) == pytest.approx(1 - best)
    draws = []
    for _ in range(40000):
        x = generator.integers(4)
        one, other = generator.choice(8, 2, p=oracle.reference[x])
        if one != other:
            gap = oracle.reward[x, one] - oracle.reward[x, other]
            label = generator.random() < expit(gap)
            draws.append((gap > 0) == label)
    assert best == pytest.approx(np.mean(draws), abs=0.01)


def test_models_without_questions_are_sent_back(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code != 0
    assert "--set FILE" in str(done.exception)
