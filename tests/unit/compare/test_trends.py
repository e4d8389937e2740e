"""What the paper reports, on worlds where it can be checked: the adaptive multiplier, and thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_lab.compare.runner import Row, run_arm
from pddpo_lab.compare.suite import Suite, load_suite
from pddpo_ray.backends.in_process import make_backends

SMALL = """
about: trends
seeds: [0, 1, 2]
seed_keys: [seed, world.seed]
set: ["world={kind: tabular, name: rare}", feedback.responses=48, limits.cost.labels_each=32, dual.upper=2.0]
arms:
  adalag:
    label: adaLag
    recipe: tabular
    set: [algorithm=pd-dpo-adalag, rounds=8, "dual.rule={kind: log, rate: 12.0}", dual.first=0.1, method.window=96]
  slow: {label: adaLag, recipe: tabular, set: [algorithm=pd-dpo-adalag, rounds=3, "dual.rule={kind: log}"]}
tables:
  - {kind: sweep, key: threshold, title: Thresholds, of: adalag, setting: limits.cost.at_most, at: [-0.2, 0.1, 0.4]}
"""


def suite(folder: Path) -> Suite:
    path = folder / "trends.yaml"
    path.write_text(SMALL)
    return load_suite(str(path))


def rows_of(loaded: Suite, arms: list[str], folder: Path) -> dict[str, list[Row]]:
    return {arm: [run_arm(loaded, arm, seed, folder, make_backends) for seed in loaded.seeds] for arm in arms}


def means(rows: dict[str, list[Row]], key: str) -> list[float]:
    return [float(np.mean([row[key] for row in found])) for found in rows.values()]


@pytest.mark.full
def test_a_looser_threshold_is_less_harmless_and_more_helpful(tmp_path: Path) -> None:
    """Exact expectations, means over three worlds, monotone over thresholds -0.2, 0.1 and 0.4."""
    loaded = suite(tmp_path)
    rows = rows_of(loaded, loaded.tables[0].arms, tmp_path)
    costs, rewards = means(rows, "cost_last"), means(rows, "reward_last")
    assert costs == sorted(costs)
    assert rewards == sorted(rewards)
    assert costs[-1] - costs[0] > 0.05


@pytest.mark.run
def test_adalags_multiplier_rises_while_the_windows_cost_is_above_the_limit_and_falls_after_it(tmp_path: Path) -> None:
    """On a world where it starts too low: it rises, overshoots by the window's memory, and falls."""
    loaded = suite(tmp_path)
    found: dict[str, Any] = run_arm(loaded, "adalag", 1, tmp_path, make_backends)
    trace = found["trace"]
    moves = np.sign(np.array(trace["next"]) - np.array(trace["multiplier"]))
    above = np.sign(np.array(trace["estimate"]) - found["threshold"])
    np.testing.assert_array_equal(moves, above)
    assert moves[0] == 1
    assert (moves == -1).any()
    first_fall = int(np.argmax(moves == -1))
    assert (moves[:first_fall] == 1).all()


@pytest.mark.run
def test_an_arm_is_read_back_and_not_run_again(tmp_path: Path) -> None:
    loaded = suite(tmp_path)

    def refuse(*_: Any) -> Any:
        raise AssertionError("the arm was run again")

    first = run_arm(loaded, "slow", 0, tmp_path, make_backends)
    assert run_arm(loaded, "slow", 0, tmp_path, refuse) == first
