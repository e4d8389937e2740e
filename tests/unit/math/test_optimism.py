"""Split roles: both inequalities by exact sums in 20,000 random instances, in fractions, by hand, on shipped worlds."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax

from pddpo_lab.verify.optimism import SplitRoles, split_roles, valid
from pddpo_lab.verify.split_roles import sides, split_role_claims, worlds_that_ship
from pddpo_ray.config import DrawnFamilyConfig
from pddpo_ray.worlds.text.drawn_world import DrawnWorldSpec, build_drawn_world
from pddpo_ray.worlds.text.family import drawn_grammar
from pddpo_ray.worlds.text.reference import ReferenceSpec, intended_reference


def random_instances(count: int, prompts: int, answers: int, seed: int) -> SplitRoles:
    """Priors, references with very rare answers, scores, errors, temperatures and bonuses that are often just valid."""
    draws = np.random.default_rng([seed, prompts, answers])
    shape = (count, prompts, answers)
    prior = draws.dirichlet(np.ones(prompts), count)
    reference = draws.dirichlet(0.3 * np.ones(answers), (count, prompts))
    beta = np.exp(draws.uniform(math.log(0.01), math.log(10.0), (count, 1, 1)))
    score = 3.0 * draws.standard_normal(shape)
    error = np.exp(draws.uniform(-5, 2, (count, 1, 1))) * draws.standard_normal(shape)
    slack = draws.choice([0.0, 0.0, 1.0, 10.0], shape) * draws.random(shape)
    shift = 5.0 * draws.standard_normal((count, prompts, 1))  # a constant of the prompt changes no policy
    return split_roles(prior, reference, score, score - error + shift, np.abs(error) + slack, beta)


@pytest.mark.parametrize(("prompts", "answers"), [(1, 2), (1, 5), (3, 4), (4, 8)])
def test_both_inequalities_hold_in_20000_random_instances(prompts: int, answers: int) -> None:
    found = random_instances(5000, prompts, answers, seed=1)
    assert (found.gap >= -1e-9).all()
    assert (found.gap <= found.under_policy + found.under_collector + 1e-9).all()
    assert (found.gap <= 2.0 * found.under_collector + 1e-9).all()
    assert (found.under_policy <= found.under_collector + 1e-9).all()
    # the bound is used: it is no bound that anything would keep
    assert found.share_of_bound.max() > 0.5
    assert found.share_of_collector.max() == pytest.approx(1.0, abs=1e-6)


def test_the_collectors_inequality_in_fractions() -> None:
    """exp(s / beta) = 2^k makes every probability a fraction, so that nothing is rounded."""
    draws = np.random.default_rng(2)
    for _ in range(300):
        size = int(draws.integers(2, 7))
        reference = [Fraction(int(value)) for value in draws.integers(1, 50, size)]
        estimate, bonus = draws.integers(-6, 7, size), draws.integers(0, 9, size)
        policy = [weight * Fraction(2) ** int(k) for weight, k in zip(reference, estimate, strict=True)]
        collector = [weight * Fraction(2) ** int(b) for weight, b in zip(policy, bonus, strict=True)]
        means = [
            sum(w * int(b) for w, b in zip(weights, bonus, strict=True)) / sum(weights)
            for weights in (policy, collector)
        ]
        assert means[0] <= means[1]


def test_two_answers_by_hand() -> None:
    """s = (0, 1), s^ = (1, 0), b = (1, 1), beta = 1: pi has e/(1+e) on the worse answer, and so has mu."""
    found = split_roles(
        np.ones(1), np.full((1, 2), 0.5), np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]), np.ones((1, 2)), 1.0
    )
    tilt = math.e / (1 + math.e)
    divergence = tilt * math.log(2 * tilt) + (1 - tilt) * math.log(2 * (1 - tilt))
    assert float(found.gap) == pytest.approx(math.log((1 + math.e) / 2) - ((1 - tilt) - divergence))
    assert float(found.under_policy) == pytest.approx(1.0)
    assert float(found.share_of_bound) == pytest.approx(float(found.gap) / 2)


def test_the_gap_is_that_of_the_best_policy_which_scipy_finds() -> None:
    draws = np.random.default_rng(3)
    prior, reference = draws.dirichlet(np.ones(2)), draws.dirichlet(np.ones(3), 2)
    score, estimate = draws.standard_normal((2, 2, 3))

    def value(policy: np.ndarray) -> float:
        divergence = np.sum(policy * np.log(policy / reference), axis=1)
        return float(prior @ (np.sum(policy * score, axis=1) - 0.3 * divergence))

    best = minimize(lambda logits: -value(softmax(logits.reshape(2, 3), axis=1)), np.zeros(6), tol=1e-12)
    policy = softmax(np.log(reference) + estimate / 0.3, axis=1)
    found = split_roles(prior, reference, score, estimate, np.abs(score - estimate), 0.3)
    assert float(found.gap) == pytest.approx(-best.fun - value(policy), abs=1e-6)


def test_a_bonus_that_is_too_small_can_break_the_first_inequality_and_never_the_second() -> None:
    found = split_roles(
        np.ones(1), np.full((1, 2), 0.5), np.array([[0.0, 4.0]]), np.zeros((1, 2)), np.full((1, 2), 0.1), 0.5
    )
    assert float(found.share_of_bound) > 1.0
    assert float(found.share_of_collector) == pytest.approx(1.0)


def test_a_bonus_is_valid_up_to_a_constant_of_the_prompt() -> None:
    score, estimate = np.array([[1.0, 2.0, 4.0]]), np.array([[0.0, 1.0, 2.0]])
    centre = np.array([[0.5, 0.5, 0.0]])
    assert valid(score, estimate, np.array([[0.0, 0.0, 1.0]]), centre)[0] == 0.0
    assert valid(score, estimate, np.array([[0.0, 0.0, 0.75]]), centre)[0] == 0.25


def test_both_hold_on_every_tabular_world_that_ships() -> None:
    claims = split_role_claims()
    assert len(claims) == 2 * len(worlds_that_ship())
    for claim in claims:
        assert claim.passed, f"{claim.claim}: {claim.value}"
        assert claim.value > 0.01


def test_both_hold_on_the_text_world() -> None:
    """Its prompts and answers with the intended reference, text outside of the grammar in one more column."""
    grammar = drawn_grammar(DrawnFamilyConfig(), 0)
    log_probs = np.log(0.995 * intended_reference(grammar, ReferenceSpec(seed=0)))
    oracle = build_drawn_world(DrawnWorldSpec(seed=0), log_probs, grammar).oracle
    for found in sides(oracle, draws=4):
        assert found.share_of_bound.max() <= 1.0 + 1e-9
        assert found.share_of_collector.max() <= 1.0 + 1e-9
