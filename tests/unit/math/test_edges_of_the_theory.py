"""Ends of intervals, defaults and single steps of the theory's formulas, each by hand or against scipy."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import check_grad
from scipy.special import logit, logsumexp

from pddpo_lab.methods.explicit_dual import dual_slope
from pddpo_lab.mle import _value_and_slope, bounded_logistic, box_mle, optimistic_mle, win_counts
from pddpo_lab.policy_gradient.losses import (
    advantages,
    clipped_policy_loss,
    clipped_value_loss,
    combined_advantage,
    token_streams,
)
from pddpo_ray.config import BudgetRefit, UnionRefit
from pddpo_ray.config.sections.trainer import DeterminantRefit, GeometricRefit
from pddpo_ray.parts.fitting import older_rows
from pddpo_ray.records import CostEstimate, PairRow
from pddpo_ray.theory.agreement import TIE, agreement
from pddpo_ray.theory.certificates.certificate import (
    bets_above,
    bets_below,
    first_certified,
    log_wealth,
    lower_bound,
    upper_bound,
)
from pddpo_ray.theory.estimates.cost_estimate import (
    clipped_logit,
    estimate_from_shares,
    expected_clipped_logit,
    logit_bias,
    mean_with_error,
    within_covariance,
)
from pddpo_ray.theory.estimates.estimate_interval import interval
from pddpo_ray.theory.intervals import clopper_pearson, mean_interval, student_half_width
from pddpo_ray.theory.losses.objectives import baseline_optimism_loss, support_loss
from pddpo_ray.theory.multipliers.dual import (
    DampedNewton,
    DualState,
    Fixed,
    LogMultiplier,
    ProjectedAnytime,
    ProjectedFixed,
    ascend,
    curvature_variance,
    limit_state,
)
from pddpo_ray.theory.refit import is_power, limit_rows
from pddpo_ray.theory.seeds import generator, generator_of, seed_of

# --- agreement and seeds ---------------------------------------------------------------------------------------------


def test_a_difference_of_exactly_the_tie_is_a_tie() -> None:
    assert agreement(np.array([TIE, -TIE, 2 * TIE, -2 * TIE])).tolist() == [0.5, 0.5, 1.0, 0.0]


def test_seeds_are_the_same_in_every_version() -> None:
    """A run that is resumed by a later version draws on; the formula is written out here."""
    digest = hashlib.sha256(b"int:7\0int:2\0str:replay").digest()
    assert seed_of(7, 2, "replay") == int.from_bytes(digest[:8], "little") // 2
    assert generator(7, 2, "replay").random() == np.random.default_rng(seed_of(7, 2, "replay")).random()
    named = int.from_bytes(hashlib.sha256(b"choose\na1\nb2").digest()[:8], "little")
    assert generator_of(7, "choose", "a1", "b2").random() == np.random.default_rng([7, named]).random()


# --- estimates -------------------------------------------------------------------------------------------------------


def test_single_precision_is_computed_in_double() -> None:
    """0.3 in single precision is a number of its own; what follows from it has 53 bits."""
    single = np.array([0.3, 0.7, 0.1], dtype=np.float32)
    double = single.astype(np.float64)
    np.testing.assert_array_equal(clipped_logit(single, 2.0), np.clip(logit(double), -2.0, 2.0))
    np.testing.assert_array_equal(expected_clipped_logit(single, 3, 2.0), expected_clipped_logit(double, 3, 2.0))
    np.testing.assert_array_equal(logit_bias(single, 3, 2.0), expected_clipped_logit(double, 3, 2.0) - double)
    assert mean_with_error(single) == mean_with_error(double)
    assert mean_interval(single) == mean_interval(double)
    of_single, of_double = (within_covariance(one[:, None], list("aab"), one[:, None]) for one in (single, double))
    assert of_single == of_double
    assert upper_bound(single, 0.5, 0.05) == upper_bound(double, 0.5, 0.05)
    assert first_certified(single, 0.5, 0.05) == first_certified(double, 0.5, 0.05)


def test_estimates_name_what_they_are_about_unless_told_otherwise() -> None:
    by_scores = estimate_from_shares([0.0, 1.0, 2.0], labels_each=1, cost_max=2.0, mode="cost_model")
    assert by_scores == CostEstimate(1.0, pytest.approx(1 / math.sqrt(3)), 3, 1, "cost_model", "cost")  # type: ignore[arg-type]
    assert estimate_from_shares([0.0, 1.0], labels_each=2, cost_max=1.0).constraint == "cost"
    assert estimate_from_shares([0.0, 1.0], labels_each=2, cost_max=1.0).mode == "logit_labels"
    half = clipped_logit([0.5, 0.75], 9.0)
    assert half.tolist() == pytest.approx([0.0, math.log(3)])


@pytest.mark.parametrize(("value", "error"), [(0.3, 0.05), (0.9, 0.01), (0.5, 0.2)])
def test_a_rates_interval_is_the_exact_one_at_as_many_answers_as_its_error_says_and_never_more(
    value: float, error: float
) -> None:
    """n = rate (1 - rate) / se^2 + 1 right-or-wrong answers have that standard error; labels do not add to them."""
    for responses in (5, 400):
        count = max(1.0, min(responses, value * (1 - value) / error**2 + 1))
        assert interval(CostEstimate(value, error, responses, 3, "unsafe_rate")) == pytest.approx(
            clopper_pearson(value * count, count)
        )


def test_rates_at_the_ends_have_the_exact_interval_of_the_responses() -> None:
    for rate in (0.0, 1.0):
        assert interval(CostEstimate(rate, 0.0, 40, 3, "unsafe_rate")) == clopper_pearson(40 * rate, 40)
    assert interval(CostEstimate(-0.1, 0.01, 40, 3, "unsafe_rate")) == clopper_pearson(0, 1)


def test_groups_of_values_are_averaged_and_none_is_left_out() -> None:
    found = mean_interval([1.0, 2.0, 6.0, 5.0], ["a", "b", "a", "c"])
    expected = mean_interval([3.5, 2.0, 5.0])
    assert found == expected
    within = (0.0, 1.0)
    assert mean_interval([0.0, 1.0, 1.0], "abc", within, 0.8) == mean_interval([0.0, 1.0, 1.0], None, within, 0.8)
    with pytest.raises(ValueError, match="zip"):
        mean_interval([1.0, 2.0, 6.0], ["a", "b"])
    assert student_half_width(0.5, 5, 0.8) == pytest.approx(0.5 * stats.t.ppf(0.9, 4))


# --- certificates ----------------------------------------------------------------------------------------------------


def test_a_bet_for_a_truth_of_exactly_99_percent_is_made() -> None:
    """0.099 / 0.1 is 0.99; truths of 0.3 and less are bet on as well, of 4.95 not."""
    times = np.array([1 / 0.1, 1 / 0.25, 1 / 0.4, 1 / 0.55, 1 / 0.75])
    np.testing.assert_allclose(bets_above(0.099), (times - 1) / (times * (1 - 0.099)))
    assert bets_above(0.8) == pytest.approx([(1.125 - 1) / (1.125 * 0.2)])


def test_bounds_are_where_the_wealth_reaches_its_aim() -> None:
    """The mean of the bets' products, written out; both bounds to ten digits."""
    values = np.array([0.0, 0.25, 1.0, 0.5, 0.0, 0.75] * 9)
    for limit, level in ((0.5, 0.05), (0.3, 0.4)):
        below = (1 - np.array([0.02, 0.1, 0.25, 0.4, 0.55, 0.75])) / (
            1 - np.array([0.02, 0.1, 0.25, 0.4, 0.55, 0.75]) * limit
        )

        def wealth(bets: np.ndarray, z: np.ndarray, mean: float) -> float:
            return float(np.mean(np.prod(1 - np.outer(bets, z), axis=1) / (1 - bets * mean) ** len(z)))

        assert wealth(below, values, upper_bound(values, limit, level)) == pytest.approx(1 / level, rel=1e-9)
        low = lower_bound(values, limit, level)
        assert wealth(bets_above(limit), 1 - values, 1 - low) == pytest.approx(1 / level, rel=1e-9)
        assert math.exp(log_wealth(values, limit)[-1]) == pytest.approx(wealth(below, values, limit))
        assert math.exp(log_wealth(values, limit, above=True)[-1]) == pytest.approx(
            wealth(bets_above(limit), 1 - values, 1 - limit)
        )


# --- the dual --------------------------------------------------------------------------------------------------------


def estimate(value: float, error: float = 0.1, **more: float) -> CostEstimate:
    return replace(CostEstimate(value, error, 9, 5), **more)  # type: ignore[arg-type]


def test_only_a_broken_limit_presses_a_multiplier_against_its_upper_end() -> None:
    rule = ProjectedFixed(rounds=1, first=1.0, cost_max=1.0, step=10.0)
    state = DualState((limit_state("cost", rho=1.0, rule=rule, limit=0.25),))
    counted = []
    for cost in (1.0, 1.0, 0.25, 1.0, -1.0, -1.0, 1.0, 0.3):
        state, _ = ascend(state, estimate(cost))
        counted.append((state["cost"].rounds_at_upper, state["cost"].rounds_at_lower))
    assert counted == [(1, 0), (2, 0), (0, 0), (1, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
    assert state["cost"].steps == 8
    rising = DualState((limit_state("cost", rho=1.0, rule=replace(rule, step=0.1)),))
    assert ascend(rising, estimate(0.5))[0]["cost"].rounds_at_upper == 0


def test_a_multiplier_may_begin_at_either_end() -> None:
    for first in (0.2, 3.0):
        made = limit_state("cost", rho=1.0, rule=Fixed(), first=first, lower=0.2, upper=3.0)
        assert made.multiplier == first
    with pytest.raises(ValueError, match="reversed"):
        limit_state("cost", rho=1.0, rule=Fixed(), lower=-0.1)


def test_one_wild_estimate_multiplies_by_e_to_the_50_at_most() -> None:
    constraint = limit_state("cost", rho=1.0, rule=Fixed(), first=0.5)
    assert LogMultiplier(1e9).next(constraint, estimate(1.0))[0] == pytest.approx(0.5 * math.exp(50.0))


def test_rules_shrink_the_variance_with_their_own_bound_of_costs() -> None:
    """Prior 16 responses of variance (3 / 2)^2; 9 responses of 0.01 * 9 or of 0.4 within prompts."""
    whole, within = (0.09 * 9 + 2.25 * 16) / 25, (0.4 * 9 + 2.25 * 16) / 25
    constraint = limit_state("cost", rho=2.0, rule=Fixed(), limit=0.25)
    known = estimate(0.75, within_variance=0.4)
    assert curvature_variance(known, 3.0) == pytest.approx(within)
    value, eta, _ = ProjectedAnytime(9.0, 3.0, curvature_beta=0.1).next(constraint, known)
    assert (value, eta) == pytest.approx((2.0 + 0.19 / whole * 0.5, 0.19 / whole))
    assert ProjectedFixed(4, 9.0, 3.0, curvature_beta=0.1).next(constraint, known)[1] == pytest.approx(0.19 / whole)
    newton = DampedNewton(rounds=16, beta=0.1, cost_max=3.0)
    assert newton.next(constraint, known)[:2] == pytest.approx((2.0 + 0.1 / within * 0.5, 0.1 / within))
    for cost, moved in ((90.0, 0.5), (-90.0, -0.5)):
        assert newton.next(constraint, estimate(cost))[0] == pytest.approx(2.0 + moved)
    assert replace(newton, trust=0.01).next(constraint, known)[0] == pytest.approx(2.01)
    assert replace(newton, damping=0.25).next(constraint, known)[1] == pytest.approx(0.025 / within)


def test_what_is_said_at_an_end_names_the_constraint_its_end_and_its_limit() -> None:
    made = replace(limit_state("harm", rho=1.5, rule=LogMultiplier(1.0), limit=0.25, lower=0.125), rounds_at_upper=3)
    said = made.message or ""
    assert said.startswith("harm: the multiplier sits at its upper end 3 for 3 rounds")
    assert "stays above the limit 0.25" in said
    said = replace(made, rounds_at_upper=2, rounds_at_lower=4).message or ""
    assert said.startswith("harm: the multiplier sits at 0.125 for 4 rounds")
    assert "the limit 0.25 does not bind" in said
    assert replace(made, rounds_at_upper=2, rounds_at_lower=2).message is None


def test_the_slope_of_the_explicit_dual_by_hand() -> None:
    """Two prompts of three answers, weighted 1/4 and 3/4."""
    rewards, gains = np.array([[0.0, 1.0, 2.0], [0.5, 0.5, -1.0]]), np.array([[1.0, 0.0, -1.0], [0.5, -0.5, 2.0]])
    prior, scores = np.array([0.25, 0.75]), (rewards + 0.6 * gains) / 0.4
    slopes = (np.exp(scores) * gains).sum(axis=1) / np.exp(scores).sum(axis=1)
    assert dual_slope(rewards, gains, 0.4, 0.6, prior) == pytest.approx(prior @ slopes)
    assert dual_slope(rewards, gains, 0.4, 0.6) == pytest.approx(slopes.mean())


# --- likelihoods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_problems_solved_together_take_the_very_steps_that_they_take_alone(iterations: int) -> None:
    """From far outside, where some steps are halved and some are not."""
    rng = np.random.default_rng([3])
    wins, start = rng.integers(0, 40, size=(6, 4, 4)).astype(float), rng.normal(size=(6, 4)) * 9
    together = box_mle(wins, 20.0, start=start, iterations=iterations)
    for one, begun, found in zip(wins, start, together, strict=True):
        np.testing.assert_allclose(box_mle(one, 20.0, start=begun, iterations=iterations), found, atol=1e-9)


def test_a_warm_start_is_used_and_cut_to_the_box() -> None:
    wins = np.array([[0.0, 30.0], [10.0, 0.0]])
    scores = box_mle(wins, 2.0)
    np.testing.assert_array_equal(box_mle(wins, 2.0, start=scores, iterations=0), scores)
    assert box_mle(wins, 2.0, start=np.array([5.0, -7.0]), iterations=0).tolist() == [2.0, -2.0]


def test_the_optimistic_objective_by_hand() -> None:
    """2 wins against 1; an answer that the base never gives weighs nothing; alpha times all pairs times the mean."""
    wins = np.zeros((1, 3, 3))
    wins[0, 0, 1], wins[0, 1, 0] = 2.0, 1.0
    base = np.array([[math.log(0.25), math.log(0.75), -np.inf]])
    answers, scores = np.array([[0.4, 0.6, 0.0]]), np.array([[0.5, -0.5, 0.0]])
    logits = base[0] - scores[0] / 0.3
    log_policy = logits - logsumexp(logits)
    likelihood = 2 * math.log1p(math.exp(-1.0)) + math.log1p(math.exp(1.0)) + 0.5e-4 * 0.5
    value, slope = _value_and_slope(scores, wins, base, 0.3, answers, 0.7)
    assert value == pytest.approx(likelihood + 0.7 * 3 * (0.4 * log_policy[0] + 0.6 * log_policy[1]))
    assert np.isfinite(slope).all()
    flat = check_grad(
        lambda s: _value_and_slope(s.reshape(1, 3), wins, base, 0.3, answers, 0.7)[0],
        lambda s: _value_and_slope(s.reshape(1, 3), wins, base, 0.3, answers, 0.7)[1],
        scores.ravel(),
    )
    assert flat < 1e-5


def test_an_optimistic_weight_of_1_is_not_one_of_0() -> None:
    wins = win_counts(np.array([0, 0, 0]), np.array([0, 0, 1]), np.array([1, 1, 0]), shape=(1, 3))
    base, answers = np.log(np.full((1, 3), 1 / 3)), np.array([[1.0, 0.0, 0.0]])
    plain, pushed = (
        optimistic_mle(wins, 2.0, log_base=base, temperature=0.5, answers=answers, alpha=alpha) for alpha in (0.0, 1.0)
    )
    np.testing.assert_array_equal(plain, box_mle(wins, 2.0))
    assert pushed[0, 0] > plain[0, 0] + 0.1


def test_scores_from_many_rows_and_from_few_have_their_gradient_at_zero() -> None:
    """The solver's stopping rule means the same for a weight of 0.01 and of a million."""
    rng = np.random.default_rng([8])
    rows = rng.normal(size=(40, 3))
    for weight in (1e-2, 1.0, 1e6):
        theta = bounded_logistic(rows, weights=np.full(40, weight), ridge=0.1 * weight)
        chance = 1 / (1 + np.exp(rows @ theta))
        np.testing.assert_allclose(0.1 * theta, rows.T @ chance, atol=1e-4)


# --- losses ----------------------------------------------------------------------------------------------------------


def test_the_support_term_counts_texts_that_were_given_twice_twice() -> None:
    """Log masses -1, -2 and padding; counted once, twice and never, over 3 tokens or over 12."""
    logs = torch.tensor([-1.0, -2.0, -torch.inf], dtype=torch.float64)
    counts = torch.tensor([1.0, 2.0, 0.0])
    for tokens, divisor in ((None, 3.0), (12.0, 12.0)):
        loss, metrics = support_loss(logs, counts, tokens=tokens)
        assert float(loss) == pytest.approx(5.0 / divisor)
        outside = (1 - math.exp(-1.0)) + 2 * (1 - math.exp(-2.0))
        assert float(metrics["off_support_per_token"]) == pytest.approx(outside / divisor)
    nothing, metrics = support_loss(logs, torch.zeros(3))
    assert (float(nothing), float(metrics["off_support_per_token"])) == (0.0, 0.0)
    half, _ = support_loss(logs[:1], torch.tensor([0.5]))
    assert float(half) == pytest.approx(0.5)
    losses, told = baseline_optimism_loss(logs[:2], alpha=0.25)
    assert losses.tolist() == [-0.25, -0.5]
    assert told["baseline_log_prob"].tolist() == [-1.0, -2.0]


def test_streams_advantages_and_clipped_losses_by_hand() -> None:
    ratio = np.array([0.5, -1.0, 2.0])
    rewards, costs = token_streams(ratio, 3.0, -4.0, kl=0.1, score_clip=2.5)
    np.testing.assert_allclose(rewards, [-0.05, 0.1, 2.5])
    np.testing.assert_allclose(costs, [0.05, -0.1, -2.5])
    low, high = token_streams(ratio, -9.0, 9.0, kl=0.1, score_clip=2.5)
    assert (low[-1], high[-1]) == (-2.5, 2.5)
    found, returns = advantages(np.array([1.0, 2.0]), np.array([0.5, 0.25]), discount=0.9, trace=0.8)
    last, first = 2.0 - 0.25, 1.0 + 0.9 * 0.25 - 0.5 + 0.72 * 1.75
    np.testing.assert_allclose(found, [first, last])
    np.testing.assert_allclose(returns, [first + 0.5, last + 0.25])
    mixed = combined_advantage(np.array([3.0, 1.0]), np.array([2.0, -4.0]), 0.5)
    np.testing.assert_allclose(mixed, [2.0 / 1.5, 3.0 / 1.5])
    old = torch.zeros(4)
    new = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5]))
    loss = clipped_policy_loss(new, old - 0.0, torch.tensor([2.0, -2.0, 2.0, -2.0]), 0.2)
    np.testing.assert_allclose(loss.numpy(), [-2.4, 3.0, -1.0, 1.6], rtol=1e-6)
    shifted = clipped_policy_loss(new - 3.0, old - 3.0, torch.tensor([2.0, -2.0, 2.0, -2.0]), 0.2)
    np.testing.assert_allclose(shifted.numpy(), loss.numpy(), rtol=1e-5)
    values, before, aims = torch.tensor([2.0, 2.0, -1.0]), torch.tensor([1.0, 1.0, 1.0]), torch.tensor([3.0, 0.0, 2.0])
    found_loss = clipped_value_loss(values, before, aims, 0.5)
    np.testing.assert_allclose(found_loss.numpy(), [0.5 * 1.5**2, 0.5 * 4.0, 0.5 * 9.0])


# --- how much of the past --------------------------------------------------------------------------------------------


def test_refits_by_hand() -> None:
    between: dict[str, Any] = {"rows": 10, "per_new": 0.5}
    assert older_rows(UnionRefit(), 3, 5, {}) is None
    assert older_rows(BudgetRefit(**between), 3, 5, {}) == 13
    asked = [older_rows(GeometricRefit(**between), n, 5, {}) for n in range(1, 10)]
    assert asked == [None, None, 13, None, 13, 13, 13, None, 13]
    assert [n for n in range(1, 10) if is_power(n, 3.0)] == [1, 3, 9]
    known = {1: 0.0, 2: 0.1, 3: 5.0}
    grown = DeterminantRefit(**between)
    assert [older_rows(grown, n, 5, known) for n in (1, 2, 3, 4)] == [None, None, 13, None]
    assert older_rows(GeometricRefit(), 3, 100, {}) == 20_200


def test_older_rows_are_drawn_evenly_without_repeating_any() -> None:
    rows = [PairRow(f"r{i}", (0,), (1,), (2,), weight=2.0, round=i // 10) for i in range(20)]
    seen = np.zeros(10)
    for seed in range(400):
        kept, margins = limit_rows(rows, (), 4, np.random.default_rng(seed))
        older = [int(row.id[1:]) for row in kept if row.round == 0]
        assert margins == ()
        assert len(set(older)) == len(older) == 4
        assert [row.weight for row in kept] == [5.0] * 4 + [2.0] * 10
        seen[older] += 1
    np.testing.assert_allclose(seen / 400, 0.4, atol=5 * math.sqrt(0.24 / 400))
    assert [row.id for row in limit_rows(rows, (), 0, np.random.default_rng(0))[0]] == [f"r{i}" for i in range(10, 20)]


def test_one_older_row_stands_for_all_that_were_left_out() -> None:
    rows = [PairRow(f"r{i}", (0,), (1,), (2,), round=i // 5) for i in range(10)]
    kept, _ = limit_rows(rows, (), 1, np.random.default_rng(0))
    assert [row.weight for row in kept] == [5.0] + [1.0] * 5


@pytest.mark.parametrize("limit", [0.2, 0.5, 0.8])
def test_a_bound_is_given_as_soon_as_there_is_one(limit: float) -> None:
    """After one draw the wealth against a mean of 1 is the mean of 1 / (1 - c_j): 1.5 times what is asked for."""
    for bets, bound, value in ((bets_below(limit), upper_bound, 0.0), (bets_above(limit), lower_bound, 1.0)):
        level = 1.5 / float(np.mean(1 / (1 - bets)))
        if level >= 1:
            continue
        found = bound([value], limit, level)
        distance = found if value == 0.0 else 1.0 - found
        assert 0.5 < distance < 1.0
        assert float(np.mean(1 / (1 - bets * distance))) == pytest.approx(1 / level)
        assert bound([value], limit, level / 1.6) == 1.0 - value
