"""Every dual rule by hand, both ends of the interval, and what the state says in words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

from pddpo_lab.methods.explicit_dual import descend
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.multipliers.dual import (
    DampedNewton,
    DualState,
    Fixed,
    LimitState,
    LogMultiplier,
    ProjectedAnytime,
    ProjectedFixed,
    Rule,
    Stepwise,
    ascend,
    cost_variance,
    limit_state,
)


def estimate(value: float, standard_error: float = 0.05, responses: int = 256, name: str = "cost") -> CostEstimate:
    return CostEstimate(value, standard_error, responses, 32, "logit_labels", name)


def state(rule: Rule, rho: float = 1.0, **settings: float) -> DualState:
    return DualState((limit_state("cost", rho=rho, rule=rule, **settings),))  # type: ignore[arg-type]


def replay(begun: DualState, estimates: Iterable[CostEstimate]) -> DualState:
    """The state after a sequence of estimates."""
    for one in estimates:
        begun, _ = ascend(begun, one)
    return begun


PLAIN = ProjectedFixed(rounds=100, first=1.0, cost_max=2.0)


def test_fixed_step_by_hand() -> None:
    """eta = 1 / ((2 + 0.5) * 10) = 0.04; 1 + 0.04 (0.75 - 0.5) = 1.01."""
    after, step = ascend(state(PLAIN, limit=0.5), estimate(0.75))
    assert step.eta == pytest.approx(0.04)
    assert after.multiplier == pytest.approx(1.01)
    assert (step.multiplier_before, step.multiplier_after) == (1.0, after.multiplier)


def test_anytime_steps_shrink_with_the_square_root_of_the_round() -> None:
    current = state(ProjectedAnytime(first_step=0.3, cost_max=2.0))
    etas = []
    for _ in range(4):
        current, step = ascend(current, estimate(0.1))
        etas.append(step.eta)
    assert etas == pytest.approx([0.3, 0.3 / math.sqrt(2), 0.3 / math.sqrt(3), 0.15])


def test_a_given_step_replaces_the_theorys() -> None:
    assert ascend(state(dataclasses.replace(PLAIN, step=0.5)), estimate(0.2))[1].eta == 0.5


@given(st.floats(-2, 2), st.floats(0.01, 2.0))
def test_an_unsafe_policy_raises_the_multiplier_and_a_safe_one_lowers_it(value: Any, first: float) -> None:
    after = ascend(state(PLAIN, first=first), estimate(value))[0].multiplier
    assert (after - first) * value >= 0
    assert 0.0 <= after <= 2.0


def test_projection_at_both_ends_and_its_messages() -> None:
    up = replay(state(dataclasses.replace(PLAIN, step=5.0)), [estimate(1.0)] * 2)
    assert up.multiplier == 2.0
    _, step = ascend(up, estimate(1.0))
    assert step.message is not None
    assert "infeasible" in step.message
    assert "raise dual.rho" in step.message
    down = replay(state(dataclasses.replace(PLAIN, step=5.0)), [estimate(-1.0)] * 2)
    assert down.multiplier == 0.0
    _, step = ascend(down, estimate(-1.0))
    assert step.message is not None
    assert "does not bind" in step.message


def test_message_ends_when_the_multiplier_leaves_the_end() -> None:
    stuck = replay(state(dataclasses.replace(PLAIN, step=1.0)), [estimate(1.0)] * 5)
    _, step = ascend(stuck, estimate(-0.5))
    assert step.message is None


def test_moving_limit_and_cost_together_gives_the_same_step_up_to_the_bound() -> None:
    here = ascend(state(dataclasses.replace(PLAIN, step=0.1)), estimate(0.3))[0].multiplier
    there = ascend(state(dataclasses.replace(PLAIN, step=0.1), limit=0.4), estimate(0.7))[0].multiplier
    assert here == pytest.approx(there)


def test_curvature_cap_keeps_the_step_below_two_beta_over_the_variance() -> None:
    wild = estimate(0.5, standard_error=10.0 / 16.0)  # sd of a response: 10
    step = ascend(state(dataclasses.replace(PLAIN, step=0.5, curvature_beta=0.1)), wild)[1]
    assert step.eta < 2 * 0.1 / cost_variance(wild, 2.0)
    assert step.eta == pytest.approx(0.95 * 0.2 / cost_variance(wild, 2.0))
    assert ascend(state(dataclasses.replace(PLAIN, step=1e-4, curvature_beta=0.1)), wild)[1].eta == 1e-4


def test_exact_steps_above_the_cap_diverge_and_below_it_converge() -> None:
    """Why the cap exists: a gradient step on the exact dual of the trap world."""
    oracle = trap_world().oracle
    curvature = oracle.cost_variance(oracle.optimum.policy) / oracle.beta
    for share, converges in ((0.5, True), (4.0, False)):
        value = oracle.optimum.multiplier + 0.01
        for _ in range(200):
            value = min(max(value + share / curvature * oracle.g(oracle.policy(value)), 0.0), 2 * oracle.rho)
        assert (abs(value - oracle.optimum.multiplier) < 1e-6) is converges


def test_variance_is_shrunk_towards_the_prior() -> None:
    assert cost_variance(estimate(0.0, 1.0, responses=16), 2.0) == pytest.approx((16.0 * 16 + 1.0 * 16) / 32)


def test_log_rule_by_hand_and_frozen_near_zero() -> None:
    rule = LogMultiplier(rate=0.5)
    after, step = ascend(state(rule, rho=5.0, first=2.0), estimate(0.3))
    assert after.multiplier == pytest.approx(2.0 * math.exp(0.5 * 2.0 * 0.3))
    assert step.eta == pytest.approx(2.0)
    frozen = replay(state(rule, rho=5.0, first=1e-3), [estimate(0.6)] * 200)
    assert frozen.multiplier == pytest.approx(1.07e-3, abs=5e-5)


def test_log_rule_keeps_its_floor_and_its_cap() -> None:
    low = replay(state(LogMultiplier(rate=0.5), rho=5.0, first=0.1, lower=0.05), [estimate(-2.0)] * 500)
    high = replay(state(LogMultiplier(rate=0.5), rho=5.0, first=2.0), [estimate(2.0)] * 50)
    assert low.multiplier == 0.05
    assert high.multiplier == 10.0


def test_damped_newton_finds_the_multiplier_of_an_exact_world_in_a_few_rounds() -> None:
    oracle = trap_world().oracle
    current = state(DampedNewton(rounds=4, beta=oracle.beta, cost_max=2.0), rho=oracle.rho)
    for _ in range(12):
        policy = oracle.policy(current.multiplier)
        spread = math.sqrt(oracle.cost_variance(policy))
        current, _ = ascend(current, estimate(oracle.g(policy), spread / 100.0, responses=10_000))
    assert current.multiplier == pytest.approx(oracle.optimum.multiplier, rel=1e-3)


def test_newton_takes_the_variance_within_prompts_where_it_is_known() -> None:
    """Shrunk towards (C/2)^2 = 1 by 16 responses: (0.2 * 256 + 1 * 16) / 272."""
    known = dataclasses.replace(estimate(-0.01, responses=256), within_variance=0.2)
    step = ascend(state(DampedNewton(rounds=25, beta=0.1, cost_max=2.0, trust=9.0)), known)[1]
    assert step.eta == pytest.approx(0.1 / ((0.2 * 256 + 16.0) / 272))


def test_newton_step_stays_in_its_trust_region() -> None:
    rule = DampedNewton(rounds=25, beta=10.0, cost_max=2.0)
    assert ascend(state(rule), estimate(1.5))[0].multiplier == pytest.approx(1.0 + 0.5 * 2.0 / 5.0)
    damped = ascend(state(dataclasses.replace(rule, damping=0.5, trust=9.0)), estimate(-0.01))[1]
    assert damped.eta == pytest.approx(0.5 * 10.0 / cost_variance(estimate(0.0), 2.0))


def test_fixed_rule_never_moves() -> None:
    assert replay(state(Fixed()), [estimate(2.0), estimate(-2.0)]).multiplier == 1.0


def test_each_constraint_of_a_vector_has_its_own_multiplier() -> None:
    two = DualState(
        (
            limit_state("harm", rho=1.0, rule=PLAIN),
            limit_state("length", rho=3.0, rule=PLAIN, limit=1.0),
        )
    )
    after, step = ascend(two, estimate(2.0, name="length"))
    assert step.constraint == "length"
    assert after["harm"] == two["harm"]
    assert after["length"].multiplier > 3.0
    with pytest.raises(KeyError, match="no limit 'cost'"):
        ascend(two, estimate(0.0))


def test_replaying_the_estimates_rebuilds_the_state() -> None:
    values = [estimate(v) for v in (0.3, -0.1, 0.7, 0.0)]
    current = state(Stepwise())
    for one in values:
        current, _ = ascend(current, one)
    assert replay(state(Stepwise()), values) == current


@pytest.mark.parametrize(
    ("settings", "what"), [({"lower": 3.0}, "reversed"), ({"first": 2.5}, "inside"), ({"first": 0.0}, "above 0")]
)
def test_impossible_bounds_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        state(PLAIN, **settings)


def test_an_estimate_that_is_no_number_moves_nothing() -> None:
    with pytest.raises(ValueError, match="finite"):
        ascend(state(PLAIN), estimate(math.nan))


def test_a_state_is_a_plain_record() -> None:
    assert isinstance(dataclasses.asdict(state(PLAIN)["cost"])["memory"], dict)
    assert isinstance(state(PLAIN)["cost"], LimitState)


def test_bounds_of_a_multiplier_must_leave_room_between_them() -> None:
    rule = ProjectedFixed(rounds=4, first=1.0, cost_max=2.0)
    with pytest.raises(ValueError, match="reversed"):
        limit_state("cost", rho=1.0, rule=rule, first=1.0, lower=1.0, upper=1.0)
    made = limit_state("cost", rho=1.5, rule=rule, limit=0.2, lower=0.1)
    assert (made.multiplier, made.upper, made.lower, made.limit) == (1.5, 3.0, 0.1, 0.2)
    assert made.memory.integral == 1.5


def test_the_third_round_at_an_end_is_said_and_no_earlier_one() -> None:
    rule = ProjectedFixed(rounds=1, first=1.0, cost_max=0.1)
    for cost, word in ((1.0, "upper end"), (-1.0, "does not bind")):
        state = DualState((limit_state("cost", rho=1.0, rule=rule),))
        for number in range(1, 5):
            state, _ = ascend(state, CostEstimate(cost, 0.1, 9, 5))
            said = state["cost"].message
            assert (said is not None) == (number >= 3)
            assert said is None or word in said


def test_log_rule_by_hand() -> None:
    state = DualState((limit_state("cost", rho=1.5, rule=LogMultiplier(0.3), first=1.2),))
    _, step = ascend(state, CostEstimate(0.5, 0.1, 9, 5))
    assert step.multiplier_after == pytest.approx(1.2 * math.exp(0.3 * 1.2 * 0.5))
    assert step.eta == pytest.approx(0.3 * 1.44)


@pytest.mark.parametrize(("shift", "upper"), [(-0.9, 5.0), (-0.2, 5.0), (0.6, 5.0), (-0.9, 0.4)])
def test_the_explicit_dual_is_least_where_scipys_bounded_search_finds_it(shift: float, upper: float) -> None:
    rng = np.random.default_rng([5])
    rewards, gains, prior = rng.normal(size=(3, 6)), rng.normal(size=(3, 6)) + shift, np.array([0.5, 0.3, 0.2])

    def dual(multiplier: float) -> float:
        return float(prior @ (0.5 * logsumexp((rewards + multiplier * gains) / 0.5, axis=1)))

    found = descend(rewards, gains, 0.5, upper=upper, prior=prior)
    best = minimize_scalar(dual, bounds=(0.0, upper), method="bounded", options={"xatol": 1e-9})
    assert dual(found.multiplier) <= best.fun + 1e-9
    assert found.multiplier == pytest.approx(best.x, abs=1e-4)
    weights = softmax((rewards + found.multiplier * gains) / 0.5, axis=1)
    assert found.sample_size == pytest.approx(prior @ (1.0 / (weights**2).sum(axis=1)))
    assert found.slope == pytest.approx(prior @ (weights * gains).sum(axis=1))
