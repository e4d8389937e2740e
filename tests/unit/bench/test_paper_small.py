"""The paper's comparison at small size: equal steps for all, who is on the frontier, what is kept and what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.studies.paper_small import shown
from lab.studies.paper_small.ground import _pair
from lab.studies.paper_small.run import RESULTS, note_ground, units_left
from lab.studies.study import FOLDER, keep, known
from pddpo_lab.compare.suite import Suite, load_suite

STEPS, QUESTIONS = 24, 40


@pytest.fixture(scope="module")
def suite() -> Suite:
    anywhere = ["data.sample=true", "data.reference={}"]
    return load_suite(str(FOLDER / "paper_small" / "paper-small.yaml"), overrides=anywhere)


def cell(helpful: float, harmless: float) -> dict[str, Any]:
    noise = np.random.default_rng(0).normal(size=(2, QUESTIONS))
    own = {"helpfulness": (helpful + 0.1 * noise[0]).tolist(), "harmlessness": (harmless + 0.1 * noise[1]).tolist()}
    numbers = {
        "kl": 1.0,
        "agrees_better": 0.6,
        "agrees_safer": 0.6,
        "multiplier": [1.0],
        "judges": {"reward": 0.6, "cost": 0.6},
    }
    return {"0": own | numbers | {"reference": {name: noise[0].tolist() for name in own}}}


def results(own: tuple[float, float], other: tuple[float, float]) -> dict[str, Any]:
    plan = shown.registered()
    cells = {arm: cell(*own) for arm in plan["pd-dpo"][:3]} | {arm: cell(*other) for arm in plan["others"][:4]}
    scorer = {"right": 60.0, "trials": 100.0, "low": 0.5, "high": 0.7}
    return cells | {shown.GROUND: {"scorers": {"judge-cost": scorer}}}


def test_every_method_has_the_same_optimiser_steps(suite: Suite) -> None:
    """A method of two stages has them in both together, PeCAN in its three fits."""
    for name in suite.arms:
        config = suite.config(name, 0)
        steps = {stage: own["steps"] for stage, own in config.trainer.stages.items()}
        rounds = steps["first_cost"] + (config.rounds - 1) * steps["cost"]
        stages = {"dpo-helpful": 0, "dpo-harmless": 0, "safe-dpo": 0, "mocan": 0, "c-dpo": 0, "caid": 0, "pecan": 2}
        extra = stages.get(config.algorithm, 1) * steps["first_reward"]
        assert rounds + extra == STEPS, name


def test_the_registered_arms_are_those_of_the_suite(suite: Suite) -> None:
    """But for P-SACPO: the study's adapters cannot hold its merge."""
    plan = shown.registered()
    assert {*plan["pd-dpo"], *plan["others"], "sacpo"} - {"p-sacpo"} == {name for name in suite.arms if "." not in name}


def test_the_lead_is_how_far_both_measures_may_fall_by_hand() -> None:
    corners = np.array([[1.0, 0.0], [0.0, 1.0]])
    own = np.array([[0.5, 0.5], [0.4, 0.4], [1.3, -1.0], [0.8, 0.6]])
    # the third is beyond both in one measure; from the fourth to the line x + y = 1 along the diagonal it is 0.2
    assert shown.lead(own, corners) == pytest.approx([0.0, -0.1, 0.3, 0.2], abs=1e-6)


@pytest.mark.parametrize(
    ("own", "other", "said"),
    [((1.0, 1.0), (0.5, 0.5), "holds"), ((0.0, 0.0), (1.0, 1.0), "fails"), ((0.5, 0.5), (0.0, 0.0), "open")],
)
def test_the_verdict_is_the_registered_one(own: Any, other: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third: no other method moved anything, so that nothing can be seen."""
    monkeypatch.setattr(shown, "registered", lambda: {**shown.registration("paper_small"), "resamples": 50})
    assert shown.verdict(results(own, other))[0] == said


def test_of_a_prompts_answers_the_two_that_differ_most_become_a_pair() -> None:
    reward, cost = np.array([0.0, 3.0, 1.0, 0.5]), np.array([0.1, 2.0, 0.0, -1.0])
    row = _pair("q", ["a", "b", "c", "d"], reward, cost, {"reward": reward, "cost": cost})
    assert (row["response_0"], row["response_1"]) == ("b", "d")
    assert (row["better_response_id"], row["safer_response_id"]) == (0, 1)
    assert (row["is_response_0_safe"], row["is_response_1_safe"]) == (False, True)


def test_every_kept_cell_says_when_where_and_by_which_version_and_keeps_no_text(suite: Suite) -> None:
    found = known(RESULTS)
    for arm, cells in found.items():
        if arm != shown.GROUND:
            assert arm in suite.arms
            for one in cells.values():
                assert all(one[name] for name in ("date", "machine", "version"))
                assert one["steps"] == STEPS, arm
                assert {type(value) for name in shown.AXES for value in one[name]} == {float}


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_every_cell_that_is_not_kept_is_one_processs_work_seed_by_seed(suite: Suite, jobs: int) -> None:
    three = replace(suite, seeds=(0, 1, 2))
    finished: dict[str, Any] = {arm: {"0": {}} for arm in list(suite.arms)[:-2]} | {shown.GROUND: {"pairs": {}}}
    units = units_left(three, finished, jobs)
    assert [unit.seed for unit in units] == sorted(unit.seed for unit in units)
    dealt = [(unit.seed, arm) for unit in units for arm in unit.arms]
    left = [(seed, arm) for seed in (0, 1, 2) for arm in suite.arms if str(seed) not in finished.get(arm, {})]
    assert sorted(dealt) == sorted(left)
    assert len(dealt) == 2 + 2 * len(suite.arms)
    shares = [len(unit.arms) for unit in units if unit.seed == 1]
    assert len(shares) == jobs
    assert max(shares) - min(shares) <= 1


def test_cells_of_other_pairs_are_not_added_to_those_that_are_kept(tmp_path: Path) -> None:
    out, scorer = tmp_path / "results.json", tmp_path / "scorers" / "run-cost"
    scorer.mkdir(parents=True)
    held_out = {"right": 7.0, "trials": 9.0, "low": 0.4, "high": 0.9}
    (scorer / "scorer.json").write_text(json.dumps({"held_out": held_out}))
    (tmp_path / "pairs.json").write_text(json.dumps({"pairs": 3}))
    note_ground(tmp_path, out)
    assert known(out) == {shown.GROUND: {"pairs": {"pairs": 3}, "scorers": {"run-cost": held_out}}}
    (tmp_path / "pairs.json").write_text(json.dumps({"pairs": 4}))
    note_ground(tmp_path, out)  # there is no cell yet
    keep(out, "mocan", {"0": {}})
    note_ground(tmp_path, out)
    (tmp_path / "pairs.json").write_text(json.dumps({"pairs": 5}))
    with pytest.raises(SystemExit, match="cells of other pairs"):
        note_ground(tmp_path, out)


KEEPING = """
import sys
from pathlib import Path
from lab.studies.study import keep
for seed in range(40):
    keep(Path(sys.argv[1]), sys.argv[2], {str(seed): {}})
"""


@pytest.mark.slow
def test_two_processes_that_keep_results_at_once_lose_none(tmp_path: Path) -> None:
    out, arms = tmp_path / "results.json", ("first", "second")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    commands = [[sys.executable, "-c", KEEPING, str(out), arm] for arm in arms]
    started = [subprocess.Popen(command, cwd=FOLDER.parents[1], env=env) for command in commands]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    assert {arm: len(known(out)[arm]) for arm in arms} == {"first": 40, "second": 40}
    assert list(tmp_path.iterdir()) == [out]
