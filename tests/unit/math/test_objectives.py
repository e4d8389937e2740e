"""Losses of both stages against TRL, the paper's long form, closed forms and numbers checked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax

from pddpo_lab.margins import score_margin
from pddpo_lab.methods.loss_bonus import bonus_margin
from pddpo_lab.verify.formulas import printed_margin
from pddpo_ray.theory.losses.objectives import baseline_optimism_loss, preference_loss, support_loss
from pddpo_ray.theory.multipliers.cost_stage import SKIP_SHARE, cost_stage_scales, cost_temperature, skips_cost_stage


def log_probs(seed: int, *shape: int) -> torch.Tensor:
    return -torch.as_tensor(np.random.default_rng(seed).gamma(4.0, 8.0, shape))


def test_cost_stage_loss_by_hand() -> None:
    """beta/multiplier = 0.1/0.5 = 0.2; h(cheaper) = 0, h(costlier) = -5; u = 1; loss log(1 + 1/e)."""
    losses, metrics = preference_loss(torch.tensor([0.0]), torch.tensor([-5.0]), temperature=cost_temperature(0.1, 0.5))
    torch.testing.assert_close(losses, torch.tensor([math.log1p(math.exp(-1))]))
    assert metrics["logit"].item() == pytest.approx(1.0)
    assert metrics["accurate"].item() == 1.0


def test_loss_at_the_base_policy_is_ln_2() -> None:
    losses, _ = preference_loss(torch.zeros(3), torch.zeros(3), temperature=0.7)
    torch.testing.assert_close(losses, torch.full((3,), math.log(2.0)))


@pytest.mark.slow
def test_reward_stage_equals_trl_sigmoid_loss(trl_sigmoid_loss: Any) -> None:
    policy, reference = log_probs(0, 2, 64), log_probs(1, 2, 64)
    ratios = policy - reference
    ours, _ = preference_loss(ratios[0], ratios[1], temperature=0.1)
    theirs = trl_sigmoid_loss(policy[0], policy[1], reference[0], reference[1], beta=0.1)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_cost_stage_equals_trl_loss_with_the_reward_policy_as_reference(trl_sigmoid_loss: Any) -> None:
    """SACPO's second stage: reference = reward policy, beta/multiplier, chosen = safer."""
    policy, reward_policy = log_probs(2, 2, 64), log_probs(3, 2, 64)
    ratios = policy - reward_policy
    ours, _ = preference_loss(ratios[0], ratios[1], temperature=cost_temperature(0.1, 1.7))
    theirs = trl_sigmoid_loss(policy[0], policy[1], reward_policy[0], reward_policy[1], beta=0.1 / 1.7)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@given(st.integers(0, 10_000), st.floats(0.02, 5.0), st.floats(0.01, 10.0))
@settings(max_examples=50, deadline=None)
def test_cost_stage_equals_the_papers_long_form(seed: int, beta: float, multiplier: float) -> None:
    """-log sigma(C(costlier) - C(cheaper)), C = (1/lam)[beta log pi_r/ref - beta log pi/ref]: the reference cancels."""
    policy, reward_policy, reference = log_probs(seed, 3, 2, 16)

    def cost(side: int) -> torch.Tensor:
        reward = beta * (reward_policy[side] - reference[side])
        return (reward - beta * (policy[side] - reference[side])) / multiplier

    long_form = torch.nn.functional.softplus(-(cost(1) - cost(0)))
    ratios = policy - reward_policy
    ours, _ = preference_loss(ratios[0], ratios[1], temperature=cost_temperature(beta, multiplier))
    torch.testing.assert_close(ours, long_form, rtol=1e-12, atol=1e-12)


@given(st.floats(-40, 40), st.floats(-40, 40), st.floats(0.01, 3.0))
def test_swapping_the_pair_flips_the_sign_of_the_logit(first: float, second: float, temperature: float) -> None:
    a, b = torch.tensor([first], dtype=torch.float64), torch.tensor([second], dtype=torch.float64)
    _, forward = preference_loss(a, b, temperature=temperature)
    _, backward = preference_loss(b, a, temperature=temperature)
    torch.testing.assert_close(forward["logit"], -backward["logit"])


def test_gradient_in_each_log_probability_is_minus_and_plus_temperature_times_sigmoid() -> None:
    chosen = torch.tensor([0.3, -2.0], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([-0.4, 1.0], dtype=torch.float64, requires_grad=True)
    losses, metrics = preference_loss(chosen, rejected, temperature=0.25)
    losses.sum().backward()
    slope = 0.25 * torch.sigmoid(-metrics["logit"])
    torch.testing.assert_close(chosen.grad, -slope)
    torch.testing.assert_close(rejected.grad, slope)


def test_gradient_agrees_with_finite_differences_with_margins_and_weights() -> None:
    rows = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    chosen, rejected = rows[0].requires_grad_(), rows[1].clone().requires_grad_()
    weights = torch.linspace(0.0, 2.0, 8, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda a, b: preference_loss(a, b, temperature=0.4, margins=rows[2].detach(), weights=weights)[0],
        (chosen, rejected),
    )


def test_responses_in_no_pair_have_exactly_zero_gradient() -> None:
    """A free policy's log ratios may be normalised over all answers; in the *difference* the normaliser cancels."""
    logits = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    ratios = torch.log_softmax(logits, 0) - math.log(0.2)
    losses, _ = preference_loss(ratios[[0, 1]], ratios[[2, 2]], temperature=0.5)
    (slope,) = torch.autograd.grad(losses.sum(), logits)
    assert slope[3:].abs().max() < 1e-16
    assert (slope[:3].abs() > 0.05).all()


def free_policy_fit(
    margin_of: Any, *, beta: float, multiplier: float, base: np.ndarray, cost: np.ndarray
) -> np.ndarray:
    """Minimiser over free logits of the expected cost-stage loss, all pairs equally often. -> log ratios to base [Y]"""
    ratio_scale = cost_temperature(beta, multiplier)
    first, second = np.triu_indices(cost.size, 1)
    preferred = expit(cost[second] - cost[first])  # probability that `first` is the cheaper one

    def loss(logits: np.ndarray) -> tuple[float, np.ndarray]:
        parameters = torch.tensor(logits, requires_grad=True)
        ratios = torch.log_softmax(parameters, 0) - torch.as_tensor(base)
        total = torch.zeros((), dtype=torch.float64)
        for cheap, costly, chance in ((first, second, preferred), (second, first, 1 - preferred)):
            losses, _ = preference_loss(
                ratios[cheap], ratios[costly], temperature=ratio_scale, margins=margin_of(costly, cheap)
            )
            total = total + (losses * torch.as_tensor(chance)).sum()
        (slope,) = torch.autograd.grad(total, parameters)
        return float(total.detach()), slope.numpy()

    found = minimize(loss, base, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    return log_softmax(found.x) - base


BASE = log_softmax(np.array([0.2, -0.5, 1.0, 0.0, -1.2]))
COST = np.array([0.9, -0.7, 0.1, -1.3, 0.6])
BONUS = np.array([0.4, 0.1, 0.9, 0.3, 0.0])


def test_corrected_bonus_loss_has_the_closed_form_as_its_minimiser() -> None:
    beta, multiplier = 0.5, 1.3
    bonus = torch.as_tensor(BONUS)
    fitted = free_policy_fit(
        lambda costly, cheap: bonus_margin(bonus[cheap], bonus[costly]),
        beta=beta, multiplier=multiplier, base=BASE, cost=COST,
    )  # fmt: skip
    closed = softmax(BASE - multiplier * (COST - BONUS) / beta)
    assert 0.5 * np.abs(np.exp(fitted + BASE) - closed).sum() < 1e-6


@pytest.mark.parametrize(("printed", "slope"), [(False, 1.3), (True, -1.0)])
def test_bonus_moves_the_log_ratio_with_slope_plus_multiplier_and_minus_one_as_printed(
    printed: bool, slope: float
) -> None:
    beta, multiplier = 0.5, 1.3

    def margins(bonus: torch.Tensor) -> Any:
        if printed:
            return lambda costly, cheap: printed_margin(bonus[cheap], bonus[costly], multiplier=multiplier)
        return lambda costly, cheap: bonus_margin(bonus[cheap], bonus[costly])

    fit = [
        free_policy_fit(margins(torch.as_tensor(b)), beta=beta, multiplier=multiplier, base=BASE, cost=COST)
        for b in (np.zeros(5), BONUS)
    ]
    response = beta * (fit[1] - fit[0])
    response -= response.mean()
    assert np.allclose(response, slope * (BONUS - BONUS.mean()), atol=1e-6)


def test_the_reward_stages_margin_fits_reward_plus_bonus() -> None:
    """u = r(better) - r(worse) must hold at h = (r + b)/beta: the margin is minus the bonus difference."""
    bonus = torch.tensor([0.7, 0.2])
    reward = torch.tensor([0.5, -0.4])
    ratios = (reward + bonus) / 0.1
    _, metrics = preference_loss(ratios[:1], ratios[1:], temperature=0.1, margins=bonus_margin(bonus[:1], bonus[1:]))
    torch.testing.assert_close(metrics["logit"], reward[:1] - reward[1:])


def test_a_bonus_margin_leaves_nothing_in_the_logit_of_two_scores_and_the_printed_one_does() -> None:
    assert score_margin(bonus_margin(0.7, 0.2), 0.7, 0.2) == 0.0
    assert score_margin(printed_margin(0.7, 0.2, multiplier=0.5), 0.7, 0.2) == pytest.approx(1.5)


def test_cost_stage_scales_bound_loss_and_learning_rate() -> None:
    assert cost_stage_scales(0.25) == (0.25, 0.25)
    assert cost_stage_scales(4.0) == (4.0, 1.0)


def test_multiplier_zero_admits_no_departure_from_the_base() -> None:
    assert cost_temperature(0.1, 0.0) == math.inf
    assert cost_temperature(0.1, 0.25) == 0.4
    with pytest.raises(ValueError, match="at least 0"):
        cost_temperature(0.1, -1.0)


def test_cost_stage_is_skipped_at_and_near_zero() -> None:
    assert skips_cost_stage(0.0, below=0.0)
    assert skips_cost_stage(0.01, below=SKIP_SHARE * 0.1)
    assert not skips_cost_stage(0.02, below=SKIP_SHARE * 0.1)


def test_support_loss_counts_response_tokens_only() -> None:
    mass = torch.log(torch.tensor([[0.5, 1.0, 0.25], [1.0, 0.0, 0.0]]))
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    loss, metrics = support_loss(mass, mask)
    torch.testing.assert_close(loss, torch.tensor(3 * math.log(2.0) / 4))
    torch.testing.assert_close(metrics["off_support_per_token"], torch.tensor((0.5 + 0.75) / 4))


def test_support_loss_in_micro_batches_adds_up_to_the_whole() -> None:
    mass = torch.log(torch.rand(6, 5, generator=torch.Generator().manual_seed(1)))
    mask = torch.ones(6, 5)
    parts = sum(support_loss(mass[i : i + 2], mask[i : i + 2], tokens=30.0)[0] for i in (0, 2, 4))
    torch.testing.assert_close(parts, support_loss(mass, mask)[0])


def test_baseline_optimism_pushes_mass_away_from_the_baselines_answers() -> None:
    rows = torch.tensor([-1.0, -2.0], requires_grad=True)
    (slope,) = torch.autograd.grad(baseline_optimism_loss(rows, alpha=0.1)[0].sum(), rows)
    assert (slope > 0).all()


def test_learning_rates_of_the_cost_stage_fall_below_the_reference_multiplier() -> None:
    assert cost_stage_scales(0.5, reference_multiplier=2.0) == (0.5, 0.25)
    assert cost_stage_scales(3.0, reference_multiplier=2.0) == (3.0, 1.0)
