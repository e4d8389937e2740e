"""Several limits: the exact optimum, the world's labels, and runs by chained stages."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from pddpo_lab.verify.command import VerifyOptions, main
from pddpo_lab.worlds.tabular.files import load_world, world_of
from pddpo_lab.worlds.tabular.world import random_world, trap_world, two_limits_world
from pddpo_lab.worlds.world_files import world_json
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.records import HARM
from pddpo_ray.report.build import build_report
from pddpo_ray.storage.whole_files import JOURNAL
from pddpo_ray.theory.multipliers.feasibility import largest_margin
from pddpo_ray.theory.multipliers.several_limits import LagrangianDual, minimise
from pddpo_ray.worlds.oracle import InfeasibleError, Limit, Oracle

WORLD = two_limits_world()


def with_second_cost(seed: int, threshold: float = 0.1) -> Oracle:
    """A random world with a second random cost."""
    world = random_world(seed)
    cost = np.clip(np.random.default_rng(seed + 100).normal(size=world.shape), -2.0, 2.0)
    return dataclasses.replace(world.oracle, further=(Limit("second", cost, threshold),))


def tilted(oracle: Oracle, first: float, second: float) -> np.ndarray:
    return oracle.tilted(oracle.reward - second * oracle.further[0].cost, oracle.cost, first)


def nested_bisection(oracle: Oracle) -> tuple[float, float]:
    """Both multipliers by a bisection inside a bisection: the inner one keeps the first limit, the outer the second."""

    def root(violation: Any) -> float:
        low, high = 0.0, 40.0
        if violation(0.0) <= 0:
            return 0.0
        for _ in range(100):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if violation(middle) > 0 else (low, middle)
        return high

    def first(second: float) -> float:
        return root(lambda value: oracle.g(tilted(oracle, value, second)))

    second = root(lambda value: oracle.further_g(tilted(oracle, first(value), value))[0])
    return first(second), second


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_both_multipliers_equal_a_nested_bisection(seed: int) -> None:
    oracle = with_second_cost(seed)
    best = oracle.optimum
    assert (best.multiplier, *best.further_multipliers) == pytest.approx(nested_bisection(oracle), abs=1e-8)
    assert abs(best.g) < 1e-9
    assert abs(best.further_g[0]) < 1e-9


def test_the_optimum_of_the_shipped_world_equals_the_minimiser_of_its_dual_by_scipy() -> None:
    """L-BFGS-B on the dual's value, written out as a sum, with its slope by finite differences."""
    oracle = WORLD.oracle

    def dual(multipliers: np.ndarray) -> float:
        scores = oracle.reward - multipliers[0] * oracle.cost - multipliers[1] * oracle.further[0].cost
        return float(oracle.beta * oracle.prior @ np.log((oracle.reference * np.exp(scores / oracle.beta)).sum(axis=1)))

    found = minimize(dual, [1.0, 1.0], method="L-BFGS-B", bounds=[(0.0, None)] * 2, options={"ftol": 1e-15})
    assert found.fun == pytest.approx(oracle.optimum.f, abs=1e-9)
    best = (oracle.optimum.multiplier, *oracle.optimum.further_multipliers)
    assert best == pytest.approx(tuple(found.x), abs=1e-4)
    assert best == pytest.approx((0.441369, 0.324379), abs=1e-6)


def test_a_second_limit_that_does_not_bind_changes_nothing() -> None:
    world = trap_world()
    loose = dataclasses.replace(world.oracle, further=(Limit("loose", WORLD.oracle.further[0].cost, 1.9),))
    one, two = world.oracle.optimum, loose.optimum
    assert two.multiplier == pytest.approx(one.multiplier, abs=1e-10)
    assert two.further_multipliers == (0.0,)
    assert two.f == pytest.approx(one.f, abs=1e-10)


def test_the_same_limit_twice_shares_its_multiplier_and_order_does_not_matter() -> None:
    oracle = trap_world().oracle
    twice = dataclasses.replace(oracle, further=(Limit("again", oracle.cost),))
    assert twice.optimum.multiplier + twice.optimum.further_multipliers[0] == pytest.approx(oracle.optimum.multiplier)
    first, second = WORLD.oracle, WORLD.oracle.further[0]
    turned = dataclasses.replace(first, cost=second.cost, further=(Limit("cost", first.cost),))
    assert turned.optimum.f == pytest.approx(first.optimum.f, abs=1e-10)
    assert turned.optimum.further_multipliers[0] == pytest.approx(first.optimum.multiplier, abs=1e-9)


@pytest.mark.slow
@given(st.integers(0, 30), st.floats(0.0, 0.3))
@settings(max_examples=15, deadline=None)
def test_no_duality_gap_and_rho_is_at_least_the_sum_of_the_multipliers(seed: int, threshold: float) -> None:
    oracle = with_second_cost(seed, threshold)
    try:
        best = oracle.optimum
    except InfeasibleError:
        return
    multipliers = np.array([best.multiplier, *best.further_multipliers])
    with np.errstate(divide="ignore"):
        log_reference = np.log(oracle.reference)
    dual = LagrangianDual(log_reference, oracle.reward, oracle._excess(), oracle.prior, oracle.beta)
    assert dual.value(multipliers) == pytest.approx(best.f, abs=1e-8)
    assert max(best.g, *best.further_g) < 1e-9
    assert oracle.rho >= multipliers.sum() - 1e-9
    assert oracle.gap(best.policy) == pytest.approx(0.0, abs=1e-8)


def test_limits_that_exclude_each_other_are_infeasible() -> None:
    oracle = trap_world().oracle
    opposed = dataclasses.replace(oracle, further=(Limit("opposed", -oracle.cost, -0.1),))
    with pytest.raises(InfeasibleError, match="together"):
        _ = opposed.optimum


def test_the_largest_margin_by_hand() -> None:
    """Two answers that are 1 below one limit and 1 above the other: half of each keeps both by nothing."""
    excess = np.array([[[-1.0, 1.0]], [[1.0, -1.0]]])
    support = np.ones((1, 2), dtype=bool)
    assert largest_margin(excess, np.ones(1), support)[0] == pytest.approx(0.0, abs=1e-12)
    assert largest_margin(excess - 0.25, np.ones(1), support)[0] == pytest.approx(0.25)


def test_a_dual_that_is_lowest_at_zero_stays_there() -> None:
    dual = LagrangianDual(np.log([[0.5, 0.5]]), np.zeros((1, 2)), -np.ones((2, 1, 2)), np.ones(1), 0.1)
    np.testing.assert_array_equal(minimise(dual), [0.0, 0.0])


# --- the world's file and labels ---------------------------------------------------------------------------------


def test_a_world_file_keeps_its_further_costs(tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    file.write_text(json.dumps(world_json(WORLD)))
    read = load_world(file)
    assert [limit.name for limit in read.oracle.further] == ["privacy"]
    np.testing.assert_array_equal(read.oracle.further[0].cost, WORLD.oracle.further[0].cost)


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ([], "must hold a cost by its name"),
        ({"cost": {"cost": [[0.0]], "threshold": 0}}, "other than 'cost'"),
        ({"b": {"cost": [[0.0]], "threshold": 0}}, "shape"),
        ({"b": {"cost": np.full((4, 8), 3.0).tolist(), "threshold": 0}}, "beyond 'cost_max'"),
        ({"b": {"cost": np.zeros((4, 8)).tolist(), "threshold": "x"}}, "finite number"),
    ],
)
def test_further_costs_that_are_none_are_refused(further: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        world_of(world_json(trap_world()) | {"further": further})


def test_offline_pairs_are_labelled_under_every_cost_and_the_first_ones_labels_stay() -> None:
    one, two = trap_world().offline(3, 200), WORLD.offline(3, 200)
    assert [(a.helpful, a.label(HARM)) for a in one] == [(b.helpful, b.label(HARM)) for b in two]
    assert all(list(item.labels) == [HARM, "privacy"] for item in two)
    costs = [
        WORLD.oracle.further[0].cost[WORLD.cell(side)] for item in two for side in (item.pair.first, item.pair.second)
    ]
    apart = np.subtract(costs[0::2], costs[1::2])
    said_first = np.array([item.label("privacy") == "first" for item in two])
    assert said_first[apart > 0.3].mean() > 0.5 > said_first[apart < -0.3].mean()


def test_verify_says_where_to_run_a_world_with_several_limits(tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    file.write_text(json.dumps(world_json(WORLD)))
    with pytest.raises(UserError, match="limits privacy too") as refused:
        main(VerifyOptions(world=str(file)))
    recipe, *overrides = shlex.split(str(refused.value).partition("pddpo train ")[2].rstrip("`"))
    assert load(recipe, overrides).thresholds == {"cost": 0.0, "privacy": 0.0}


# --- runs --------------------------------------------------------------------------------------------------------

SMALL = (
    "feedback.responses=24",
    "limits.cost.labels_each=12",
    "limits.privacy.labels_each=12",
    "explore.prompts=12",
    "offline.pairs=120",
)


def small(*overrides: str) -> Any:
    return load("tabular-two-limits", [*SMALL, *overrides])


@pytest.mark.run
@pytest.mark.parametrize("algorithm", ["o-pd-dpo", "o-pd-dpo-paper", "pd-dpo"])
def test_each_limit_has_a_stage_a_multiplier_and_labels_of_its_own(algorithm: str, tmp_path: Path) -> None:
    result = run_recipe(small("rounds=3", f"algorithm={algorithm}"), tmp_path / "run")
    assert list(result["limits"]) == ["cost", "privacy"]
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        steps, versions, metrics = journal.dual_steps(), journal.versions(), journal.metrics()[3]
        labels = {name: len(journal.safety(2, name)) for name in ("cost", "privacy")}
    assert [(s.round, s.constraint) for s in steps] == [(k, n) for k in (1, 2, 3) for n in ("cost", "privacy")]
    assert {step.estimate.constraint for step in steps} == {"cost", "privacy"}
    chain = [entry for entry in versions if entry.round == 3 and entry.stage == "cost"]
    assert [entry.version.name for entry in chain] == ["policy-3-1", "policy-3"]
    assert chain[1].base == chain[0].version.number
    assert labels == {"cost": 24, "privacy": 24}
    for name, step in zip(("cost", "privacy"), steps[-2:], strict=True):
        found = result["limits"][name]
        assert found["multiplier_next"] == step.multiplier_after
        eta_gap = step.eta * (step.estimate.value - found["bound"])
        rho = result["rho"]
        assert step.multiplier_after == pytest.approx(np.clip(step.multiplier_before + eta_gap, 0.0, 2 * rho))
    assert metrics["privacy/exact/g_policy"] == pytest.approx(result["limits"]["privacy"]["value_last"])
    assert result["multiplier_optimum"] == pytest.approx(0.441369, abs=1e-6)
    pairs = result["labels_pairs"]
    assert result["labels_used"] == 2 * result["labels_safety"] + 3 * pairs


@pytest.mark.full
@pytest.mark.run
def test_a_run_under_two_limits_that_breaks_off_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    class PowerCut(BaseException):
        pass

    def cut(event: Any) -> None:
        if getattr(getattr(event, "event", None), "phase", None) == "dual" and event.event.round == 2:
            raise PowerCut

    with pytest.raises(PowerCut):
        run_recipe(small("rounds=3"), tmp_path / "cut" / "run", progress=cut)
    resumed = run_recipe(small("rounds=3"), tmp_path / "cut" / "run", resume=True)
    whole = run_recipe(small("rounds=3"), tmp_path / "whole" / "run")
    assert resumed["limits"] == whole["limits"]


@pytest.mark.run
def test_the_page_shows_both_limits(tmp_path: Path) -> None:
    run_recipe(small("rounds=2"), tmp_path / "run")
    page = build_report(tmp_path / "run").read_text(encoding="utf-8")
    assert 'data-key="privacy/multiplier_optimum"' in page
    assert 'data-key="cost/value_mixture"' in page


@pytest.mark.run
def test_a_threshold_of_its_own_moves_the_optimum(tmp_path: Path) -> None:
    result = run_recipe(small("rounds=1", "limits.privacy.at_most=0.5"), tmp_path / "run")
    assert result["limits"]["privacy"]["multiplier_optimum"] == pytest.approx(0.0, abs=1e-9)
    assert result["limits"]["cost"]["multiplier_optimum"] == pytest.approx(0.2348, abs=1e-3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["limits.cost.labels_each=8"], "limits.privacy.labels_each=8"),
        (["algorithm=sacpo", "dual.rule.kind=fixed", "dual.first=1.0", "rounds=1"], "holds one limit, named cost"),
    ],
)
def test_limits_that_cannot_be_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small(*overrides)


@pytest.mark.run
def test_a_cost_that_the_world_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no logit called `speed`; it has cost, privacy"):
        run_recipe(
            small("rounds=1", "limits.speed={logit: {world: speed}, at_most: 0, labels_each: 12}"), tmp_path / "run"
        )
