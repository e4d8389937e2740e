"""Worlds at the edge of what can be asked: each ends in a result, or in one line before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_ray.certificates.groups import by_prompt
from pddpo_ray.certificates.testing import certify
from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.records import Array
from pddpo_ray.report.build import build_report
from pddpo_ray.report.run_data import read_run
from pddpo_ray.worlds.oracle import RHO_LEAST, InfeasibleError, Oracle
from tests.unit.loop.small_run import SMALL

PROMPTS, ANSWERS = 3, 4
COSTS = np.tile([-1.5, -0.5, 0.5, 1.5], (PROMPTS, 1))


def world_file(folder: Path, cost: Array, covered: Array | None = None, threshold: float = 0.0) -> str:
    """A table with these costs, as an override of the recipe."""
    reference = np.full((PROMPTS, ANSWERS), 1.0 / ANSWERS).tolist()
    content = {
        "prior": [1.0 / PROMPTS] * PROMPTS,
        "reference": reference,
        "baseline": reference,
        "reward": np.random.default_rng(0).uniform(-1.0, 1.0, (PROMPTS, ANSWERS)).tolist(),
        "cost": cost.tolist(),
        "beta": 0.2,
        "reward_max": 2.0,
        "cost_max": 2.0,
        "threshold": threshold,
        "offline": {"covered": (np.ones(cost.shape, dtype=bool) if covered is None else covered).tolist(), "pairs": 40},
    }
    (folder / "world.json").write_text(json.dumps(content))
    return f"world={{kind: tabular, path: {folder / 'world.json'}}}"


def run(folder: Path, world: str, *overrides: str) -> dict[str, Any]:
    quiet = ("report.tensorboard=false", "report.html=false", "rounds=2")
    return run_recipe(load("tabular", [world, *SMALL, *quiet, *overrides]), folder / "run")


@pytest.mark.run
@pytest.mark.parametrize("method", ["o-pd-dpo", "pd-dpo"])
def test_covered_answers_that_all_break_the_limit_leave_their_yardstick_out(method: str, tmp_path: Path) -> None:
    covered = np.zeros(COSTS.shape, dtype=bool)
    covered[:, 2:] = True
    result = run(tmp_path, world_file(tmp_path, COSTS, covered), f"algorithm={method}")
    assert result["gap_covered_only"] is None
    assert result["f_optimum"] is not None
    assert result["gap_last"] > 0.0


@pytest.mark.run
def test_costs_that_are_all_alike_leave_the_multiplier_without_work(tmp_path: Path) -> None:
    result = run(tmp_path, world_file(tmp_path, np.full(COSTS.shape, -1.0)))
    assert result["g_last"] == pytest.approx(-1.0)
    assert result["multiplier_optimum"] == 0.0
    assert 0.0 < result["rho"] <= 1e-9


def test_rho_is_above_0_and_a_limit_that_is_met_exactly_by_all_has_none() -> None:
    """f does not depend on the multiplier, so Slater's bound is 0 over 1."""
    flat = np.full((2, 2), 0.5)
    assert Oracle(np.array([0.5, 0.5]), flat, flat, np.full((2, 2), -1.0), 0.2).rho == RHO_LEAST
    with pytest.raises(InfeasibleError, match="exactly this expected cost"):
        _ = Oracle(np.array([0.5, 0.5]), flat, flat, np.zeros((2, 2)), 0.2).rho


@pytest.mark.run
def test_a_limit_above_all_costs_ends_in_a_result_that_nothing_binds(tmp_path: Path) -> None:
    result = run(tmp_path, world_file(tmp_path, COSTS), "limits.cost.at_most=3.0")
    assert result["multiplier_optimum"] == 0.0
    assert result["g_last"] < 0.0


@pytest.mark.run
@pytest.mark.parametrize(
    ("cost", "override", "said"),
    [
        (COSTS, "limits.cost.at_most=-5", "no policy keeps the limit of cost, -5: costs lie in [-2, 2]"),
        (COSTS, "limits.cost.at_most=-1.9", "keeps at most -1.9 logit; the best that there is has -1.5 logit"),
        (np.zeros(COSTS.shape), "limits.cost.at_most=0", "keeps at most 0 logit; the best that there is has 0 logit"),
        (np.full(COSTS.shape, 1.0), "limits.cost.at_most=0", "the cheapest policy has g = 1, not below 0"),
        (COSTS, "dual.rho=0", "must be greater than 0"),
    ],
)
def test_what_cannot_be_kept_is_one_line_before_anything_is_trained(
    cost: Array, override: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = world_file(tmp_path, cost)
    with pytest.raises(SystemExit) as ended:
        main(["train", "tabular", world, *SMALL, "rounds=2", override, "--run", str(tmp_path / "run")])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert [line.split()[0] for line in error.splitlines()] in (["pddpo:"], [f"{tmp_path / 'run'}:", "pddpo:"])
    assert not (tmp_path / "run" / "journal.sqlite").exists()


@pytest.mark.run
def test_a_prompt_whose_answers_are_all_unsafe_is_seen_beside_a_certificate_of_the_whole(tmp_path: Path) -> None:
    """Prompt 1 of three is unsafe with chance sigmoid(2) = .88 whatever is answered, the others with .12."""
    cost = np.full(COSTS.shape, -2.0)
    cost[1] = 2.0
    world = world_file(tmp_path, cost)
    overrides = (
        "limits.cost={rate: {world: cost}, learned_from: comparisons}",
        "limits.cost.labels_each=1",
        "limits.cost.at_most=0.6",
    )
    run(tmp_path, world, *overrides)
    config = load("tabular", [world, *SMALL, "report.tensorboard=false", "report.html=false", "rounds=2", *overrides])
    entry = certify(config, tmp_path / "run", "last", {}, 1280)
    assert entry.state == "certified"
    data = read_run(tmp_path / "run")
    (limit,) = entry.candidate.limits
    worst, *others = sorted(by_prompt(entry, limit, data.prompt_of_draw), key=lambda one: -one.mean)
    assert data.prompt_texts[worst.name] == "prompt 1"
    assert worst.lower > 0.5 > max(one.mean for one in others)
    assert worst.lower < 0.8808 < worst.upper
    assert worst.draws + sum(one.draws for one in others) == entry.count
    page = build_report(tmp_path / "run").read_text()
    section = page[page.index('id="certificates"') :]
    assert section.index("prompt 1") < section.index("prompt 0")
    assert "Certified: cost, the share of unsafe answers of policy-2, is at most" in section
    assert "what is shown by number of draws" in section
    assert "✓</span> certified" in page


def test_a_limit_of_the_twin_that_nothing_keeps_is_one_line() -> None:
    from tests.unit.loop.test_twin_run import TINY, twin

    with pytest.raises(UserError, match=r"no policy keeps the limit of cost, -5"):
        twin(*TINY, "limits.cost.at_most=-5")
