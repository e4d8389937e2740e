"""The label noise in a covariance, told apart by what was learned before: against known worlds, slopes and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from pddpo_lab.worlds.tabular.world import draw_answers
from pddpo_ray.theory.estimates.cost_estimate import (
    Factors,
    LearnedCosts,
    MeasuredAnswer,
    estimates_on_sets,
    noise_beside_learned,
    within_covariance,
)

Array = NDArray[np.float64]
ROUNDS, DRAWS = 200, 150


def answered(policy: Array, costs: Array, generator: np.random.Generator) -> tuple[NDArray[np.int64], Array]:
    """Two answers to each of DRAWS prompts, and one label of each under every limit. -> cells [n, 2], labels [n, I]"""
    prompts = np.repeat(generator.integers(0, len(policy), DRAWS), 2)
    answers = draw_answers(policy[prompts], generator.random(len(prompts)))
    labels = generator.random((len(prompts), len(costs))) < costs[:, prompts, answers].T
    return np.stack([prompts, answers], axis=1), labels.astype(np.float64)


def told(policy: Array, costs: Array, learned: Array, multipliers: Array) -> tuple[Array, Array]:
    """Covariances of ROUNDS rounds less the noise that is told: mean and its standard error. -> [I, I] each"""
    generator, draws, found = np.random.default_rng(3), np.repeat(np.arange(DRAWS), 2).tolist(), []
    for _ in range(ROUNDS):
        cells, labels = answered(policy, costs, generator)
        noise = noise_beside_learned(labels, learned[tuple(cells.T)], multipliers, draws)
        found.append(within_covariance(labels, draws) - np.diag(noise))
    return np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(ROUNDS)


def world() -> tuple[Array, Array, Array]:
    """Policy [6, 8], two rates that go together [2, 6, 8] and small ones: of a label's variance most is noise."""
    generator = np.random.default_rng(1)
    policy = generator.dirichlet(np.ones(8), 6)
    shared, own = generator.uniform(0.0, 0.06, (6, 8)), generator.uniform(0.0, 0.06, (2, 6, 8))
    return policy, shared + own, np.array([3.0, 5.0])


@pytest.mark.slow
def test_one_label_an_answer_and_true_costs_learned_leave_the_covariance_of_the_costs() -> None:
    policy, costs, multipliers = world()
    centred = costs - np.sum(policy * costs, axis=2, keepdims=True)
    wanted = np.einsum("xy,ixy,jxy->ij", policy, centred, centred) / len(policy)
    found, error = told(policy, costs, np.asarray(np.tensordot(multipliers, costs, 1)), multipliers)
    assert np.abs(found - wanted).max() < 4.0 * error.max()
    # the labels' own variance is 30 times the costs'
    rates = np.sum(policy * costs, axis=2).mean(axis=1)
    assert (np.diag(found) < 0.1 * rates * (1.0 - rates)).all()


@pytest.mark.slow
def test_where_the_learner_is_wrong_it_is_the_slope_of_the_learners_own_policies() -> None:
    """E[C] of the policies exp(-t learned / T): what its measured derivative in t is without any noise."""
    policy, costs, _ = world()
    generator, temperature, multiplier = np.random.default_rng(5), 0.2, 3.0
    learned = 0.5 * costs[0] + generator.uniform(0.0, 0.03, costs[0].shape)

    def rate(times: float) -> float:
        tilted = softmax(np.log(policy) - times * multiplier * learned / temperature, axis=1)
        return float(np.sum(tilted * costs[0], axis=1).mean())

    slope = (rate(1e-4) - rate(-1e-4)) / 2e-4
    found, error = told(policy, costs[:1], multiplier * learned, np.array([multiplier]))
    assert abs(found[0, 0] + temperature * slope / multiplier) < 4.0 * error[0, 0]


@pytest.mark.slow
def test_the_noise_of_rare_labels_is_taken_out_whole() -> None:
    """At a rate of 6 % the labels' variance is 200 times this cost's: a step that divides by more is too short."""
    policy, costs, multipliers = world()
    costs, multiplier = costs[:1], multipliers[0]
    centred = costs[0] - np.sum(policy * costs[0], axis=1, keepdims=True)
    generator, found = np.random.default_rng(7), []
    factors: Factors = {(x,): np.ones(1) for x in range(len(policy))}
    for _ in range(100):
        cells, labels = answered(policy, costs, generator)
        learned = LearnedCosts(multiplier * costs[0][tuple(cells.T)], np.array([multiplier]), np.array([True]))
        measured = [
            MeasuredAnswer(1, (x,), (y,), f"draw-{row // 2}", label, np.zeros(1), np.zeros(1, dtype=bool))
            for row, ((x, y), label) in enumerate(zip(cells.tolist(), labels, strict=True))
        ]
        found.append(estimates_on_sets(measured, factors, np.ones(1), learned).covariance[0, 0])
    wanted = float(np.sum(policy * centred**2, axis=1).mean())
    assert np.mean(found) == pytest.approx(wanted, rel=0.15)


def test_the_noise_by_hand() -> None:
    """Labels 1 0 | 0 0, learned .5 .1 | .2 .2, lambda 2: (2 * .5 / 2 - .2 / 2) / 2 = .2, of a variance of .25."""
    labels, prompts = np.array([[1.0], [0.0], [0.0], [0.0]]), ["a", "a", "b", "b"]
    assert within_covariance(labels, prompts)[0, 0] == pytest.approx(0.25)
    assert noise_beside_learned(labels, [0.5, 0.1, 0.2, 0.2], [2.0], prompts) == pytest.approx([0.2])
    unmeasured = np.array([[1.0], [0.0], [0.0], [np.nan]])
    assert noise_beside_learned(unmeasured, [0.5, 0.1, 0.2, 0.2], [2.0], prompts) == pytest.approx([0.4])


def test_nothing_is_told_where_nothing_can_be() -> None:
    labels, prompts = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]), ["a", "a", "b", "b"]
    learned = [0.5, 0.1, 0.2, 0.2]
    for values, multipliers, groups in (
        (learned, [0.0, 0.0], prompts),  # no limit acts
        ([0.3, 0.3, 0.1, 0.1], [1.0, 1.0], prompts),  # nothing was learned
        (learned, [1.0, 1.0], ["a", "b", "c", "d"]),  # one answer a prompt
    ):
        assert np.isnan(noise_beside_learned(labels, values, multipliers, groups)).all()
    first, second = noise_beside_learned(labels, learned, [1.0, 0.09], prompts)
    assert np.isfinite(first)
    assert np.isnan(second)


def test_estimates_take_out_what_is_told_of_limits_with_one_label_an_answer() -> None:
    """The first limit's noise is told, the second's stays its own; negative noise is none; means do not change."""
    factors: Factors = {(0,): np.ones(2)}
    labels = [((1.0, 0.0), "a"), ((0.0, 0.0), "a"), ((0.0, 1.0), "b"), ((0.0, 0.0), "b")]
    measured = [
        MeasuredAnswer(1, (0,), (y,), draw, np.array(costs), np.array([0.0, 0.01]), np.zeros(2, dtype=bool))
        for y, (costs, draw) in enumerate(labels)
    ]
    plain = estimates_on_sets(measured, factors, np.ones(2))
    np.testing.assert_allclose(plain.covariance, np.diag([0.25, 0.24]))
    for first, noise in ((0.5, 0.2), (0.9, 0.15), (3.0, 0.0)):
        learned = LearnedCosts(np.array([first, 0.1, 0.2, 0.2]), np.array([2.0, 0.0]), np.array([True, False]))
        found = estimates_on_sets(measured, factors, np.ones(2), learned)
        np.testing.assert_array_equal(found.means, plain.means)
        np.testing.assert_allclose(found.covariance, np.diag([0.25 - noise, 0.24]), atol=1e-12)
