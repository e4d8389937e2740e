"""The exact oracle: every claim of `verify.checks` on several worlds, and the invariants as properties."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddpo_lab.verify.checks import FORMULAS, gap_bound, multiplier_from_reference_samples
from pddpo_lab.worlds.tabular.world import TabularWorld, random_world, trap_world
from pddpo_ray.worlds.oracle import InfeasibleError, Oracle, mixture

seeds = st.integers(0, 30)
slow_property = settings(max_examples=15, deadline=None)


@cache
def world(name: str) -> TabularWorld:
    return trap_world() if name == "trap" else random_world(int(name.removeprefix("random ")))


@cache
def drawn(seed: int) -> TabularWorld:
    return random_world(seed)


def changed(seed: int, **tables: Any) -> Oracle:
    return dataclasses.replace(drawn(seed).oracle, **tables)


@pytest.mark.parametrize("name", ["trap", "random 0", "random 1", "random 2"])
@pytest.mark.parametrize("check", FORMULAS, ids=lambda check: check.__name__)
def test_every_exact_claim_holds(check: Any, name: str) -> None:
    row = check(world(name))
    assert row.passed, f"{row.claim}: {row.value} against {row.reference}"


def test_reference_samples_find_the_multiplier_for_other_draws_too() -> None:
    errors = [multiplier_from_reference_samples(trap_world(), seed=seed).value for seed in range(8)]
    assert np.mean(errors) < 0.01


def test_optimum_by_hand() -> None:
    """One prompt, two answers, r = (1, 0), c = (1, -1), beta = 1, uniform reference: g = 0 at 1/2, so 1 = 2 lambda."""
    oracle = Oracle(np.ones(1), np.full((1, 2), 0.5), np.array([[1.0, 0.0]]), np.array([[1.0, -1.0]]), beta=1.0)
    optimum = oracle.optimum
    assert optimum.multiplier == pytest.approx(0.5, abs=1e-12)
    assert optimum.policy == pytest.approx(np.full((1, 2), 0.5), abs=1e-12)
    assert optimum.f == pytest.approx(0.5)
    assert oracle.gap(optimum.policy) == pytest.approx(0.0, abs=1e-12)


def test_multiplier_is_zero_where_the_limit_does_not_bind() -> None:
    oracle = dataclasses.replace(trap_world().oracle, threshold=1.5)
    assert oracle.optimum.multiplier == 0.0
    assert oracle.rho > 0.0
    np.testing.assert_array_equal(oracle.optimum.policy, oracle.policy(0.0))


def test_a_limit_below_every_answer_is_infeasible() -> None:
    oracle = dataclasses.replace(trap_world().oracle, threshold=-1.9)
    with pytest.raises(InfeasibleError, match="cannot be met"):
        oracle.best()


def test_trap_world_has_the_published_covered_only_gap() -> None:
    found = trap_world()
    assert found.oracle.optimum.f - found.oracle.covered_only(found.covered).f == pytest.approx(0.4642, abs=2e-4)


def test_values_of_many_tables_are_those_of_each() -> None:
    oracle = trap_world().oracle
    tables = np.stack([oracle.policy(value) for value in (0.0, 0.4, 2.0)])
    np.testing.assert_allclose(oracle.f_values(tables), [oracle.f(table) for table in tables], rtol=1e-14)
    np.testing.assert_allclose(oracle.g_values(tables), [oracle.g(table) for table in tables], rtol=1e-14)


def test_leaving_the_references_support_costs_infinite_divergence() -> None:
    oracle = Oracle(np.ones(1), np.array([[1.0, 0.0]]), np.zeros((1, 2)), np.array([[-1.0, 1.0]]), beta=0.1)
    assert oracle.kl(np.array([[0.5, 0.5]])) == np.inf
    assert oracle.kl(np.array([[1.0, 0.0]])) == 0.0


@given(seeds, st.floats(-1.5, 1.5), st.floats(0.0, 3.0))
@slow_property
def test_constants_per_prompt_change_no_policy(seed: int, constant: float, multiplier: float) -> None:
    oracle = drawn(seed).oracle
    shift = constant * np.arange(1.0, 5.0)[:, None]
    np.testing.assert_allclose(
        changed(seed, reward=oracle.reward + shift).policy(multiplier), oracle.policy(multiplier), atol=1e-10
    )
    np.testing.assert_allclose(
        changed(seed, cost=oracle.cost + shift).policy(multiplier), oracle.policy(multiplier), atol=1e-10
    )


@given(seeds, st.floats(0.1, 10.0))
@slow_property
def test_scaling_reward_cost_and_beta_together_changes_neither_policies_nor_multiplier(seed: int, scale: float) -> None:
    oracle = drawn(seed).oracle
    scaled = changed(seed, reward=scale * oracle.reward, cost=scale * oracle.cost, beta=scale * oracle.beta)
    assert scaled.optimum.multiplier == pytest.approx(oracle.optimum.multiplier, rel=1e-8)
    np.testing.assert_allclose(scaled.optimum.policy, oracle.optimum.policy, atol=1e-8)


@given(seeds)
@slow_property
def test_doubling_the_cost_halves_the_multiplier(seed: int) -> None:
    oracle = drawn(seed).oracle
    assert changed(seed, cost=2.0 * oracle.cost).optimum.multiplier == pytest.approx(
        oracle.optimum.multiplier / 2.0, rel=1e-9
    )


@given(seeds, st.floats(-0.2, 0.3))
@slow_property
def test_shifting_the_threshold_is_shifting_the_cost(seed: int, threshold: float) -> None:
    oracle = drawn(seed).oracle
    moved, shifted = changed(seed, threshold=threshold), changed(seed, cost=oracle.cost - threshold)
    assert moved.optimum.multiplier == pytest.approx(shifted.optimum.multiplier, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(moved.optimum.policy, shifted.optimum.policy, atol=1e-9)


@given(seeds)
@slow_property
def test_multiplier_is_zero_when_the_unconstrained_optimum_is_feasible(seed: int) -> None:
    oracle = drawn(seed).oracle
    free = changed(seed, threshold=oracle.g(oracle.policy(0.0)) + oracle.threshold)
    assert free.optimum.multiplier == 0.0


@given(seeds, st.lists(st.floats(0.0, 4.0), min_size=2, max_size=6))
@slow_property
def test_a_mixture_has_the_mean_cost_and_at_least_the_mean_value(seed: int, multipliers: list[float]) -> None:
    oracle = drawn(seed).oracle
    tables = [oracle.policy(value) for value in multipliers]
    assert oracle.g(mixture(tables)) == pytest.approx(np.mean([oracle.g(table) for table in tables]), abs=1e-12)
    assert oracle.f(mixture(tables)) >= np.mean([oracle.f(table) for table in tables]) - 1e-12


@given(seeds, st.floats(0.0, 5.0))
@slow_property
def test_no_policy_of_the_family_has_negative_gap(seed: int, multiplier: float) -> None:
    oracle = drawn(seed).oracle
    assert oracle.gap(oracle.policy(multiplier)) >= -1e-10


def test_gap_bound_by_hand() -> None:
    """rho = lambda_1, d = 0: rho C / (2 sqrt K) + rho C / (2 sqrt K) = rho C / sqrt K."""
    oracle = trap_world().oracle
    assert gap_bound(oracle, first=oracle.rho, rounds=100) == pytest.approx(oracle.rho * 2.0 / 10.0)
