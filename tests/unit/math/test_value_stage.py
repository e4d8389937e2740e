"""Learning from values: the loss and its minimiser, by hand, by enumeration and by scipy."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from pddpo_lab.value_scores import centred_losses, table_scores
from pddpo_ray.theory.losses.value_stage import value_losses, value_scale, value_targets

BETA = 0.1


def test_one_pair_by_hand() -> None:
    """lambda (2, 1), ranges (1, 4): s = 6. Costs (.5, 1) and (.25, 3): t = (2 * .25 - 2) / 6 = -.25.
    h = .3 and -.2 at beta .6: u = .6 / 6 * (-.5) = -.05. Loss (-.05 + .25)^2 = .04."""
    scale = value_scale([2.0, 1.0], [1.0, 4.0])
    assert scale == 6.0
    target = value_targets([2.0, 1.0], [[0.5, 1.0]], [[0.25, 3.0]], scale)
    np.testing.assert_allclose(target, [-0.25])
    loss = value_losses(np.array([0.3]), np.array([-0.2]), target, temperature=0.6 / scale)
    np.testing.assert_allclose(loss, [0.04])


def test_tensors_give_what_arrays_give() -> None:
    draws = np.random.default_rng(0).normal(size=(3, 5))
    tensors = [torch.tensor(row) for row in draws]
    np.testing.assert_allclose(value_losses(*tensors, temperature=0.3).numpy(), value_losses(*draws, temperature=0.3))
    np.testing.assert_allclose(
        centred_losses(tensors[0], tensors[1], temperature=0.3).numpy(),
        centred_losses(draws[0], draws[1], temperature=0.3),
    )


def test_the_centred_form_is_that_of_all_pairs() -> None:
    h, costs = np.random.default_rng(1).normal(size=(2, 7))
    pairs = [value_losses(h[a], h[b], costs[a] - costs[b], temperature=0.7) for a, b in combinations(range(7), 2)]
    assert 7 * centred_losses(h, costs, temperature=0.7).sum() == pytest.approx(sum(pairs))


@pytest.mark.parametrize("seed", range(4))
def test_the_minimiser_is_the_lagrangian_policy_for_any_sampling(seed: int) -> None:
    """Expected loss over random labels, enumerated: pairs by any joint chances, labels v in {0, 1} with E[v] = C.

    The expectation over labels adds a constant to the loss at the means, so the weighted table is the exact problem.
    """
    generator = np.random.default_rng(seed)
    answers, limits = 3, 2
    base = generator.dirichlet(np.ones(answers))
    costs, multipliers = generator.uniform(size=(answers, limits)), generator.uniform(0.2, 2.0, limits)
    chances = generator.dirichlet(np.full(answers * answers, 0.5)).reshape(answers, answers)
    scale = value_scale(multipliers, np.ones(limits))
    a, b = np.divmod(np.arange(answers * answers), answers)

    def expected_loss(logits: np.ndarray) -> float:
        h, total = log_softmax(logits) - np.log(base), 0.0
        for first, second, chance in zip(a, b, chances.ravel(), strict=True):
            for bits in np.ndindex(*(2,) * (2 * limits)):
                label = np.array(bits).reshape(2, limits)
                p = np.where(label == 1, costs[[first, second]], 1 - costs[[first, second]]).prod()
                t = value_targets(multipliers, label[:1], label[1:], scale)[0]
                total += chance * p * value_losses(h[first], h[second], t, temperature=BETA / scale)
        return float(total)

    wanted = softmax(np.log(base) - costs @ multipliers / BETA)
    t = value_targets(multipliers, costs[a], costs[b], scale)
    scores = table_scores([0] * answers**2, a.tolist(), b.tolist(), t, shape=(1, answers), weights=chances.ravel())
    np.testing.assert_allclose(softmax(np.log(base) - scores[0] * scale / BETA), wanted, atol=1e-9)
    if seed == 0:
        best = minimize(expected_loss, np.log(base), method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(softmax(best.x), wanted, atol=1e-4)
        assert expected_loss(np.log(wanted)) <= best.fun + 1e-9


def test_targets_lie_within_one() -> None:
    generator = np.random.default_rng(3)
    low, high = np.array([0.0, 10.0]), np.array([1.0, 50.0])
    first, second = generator.uniform(low, high, (2, 500, 2))
    multipliers = np.array([0.7, 0.02])
    targets = value_targets(multipliers, first, second, value_scale(multipliers, high - low))
    assert np.abs(targets).max() <= 1.0
    assert np.abs(targets).max() > 0.7


def test_answers_and_prompts_without_pairs_stay_as_they_were() -> None:
    scores = table_scores([0, 0], [0, 1], [1, 0], [0.4, -0.4], shape=(2, 4))
    np.testing.assert_allclose(scores, [[0.2, -0.2, 0.0, 0.0], [0.0] * 4], atol=1e-12)


def test_a_ridge_counts_as_pairs_with_nothing() -> None:
    """Two answers, one pair with t = .6, ridge r: r s + (s - -s) = .6, so s = .6 / (2 + r)."""
    scores = table_scores([0], [0], [1], [0.6], shape=(1, 2), ridge=1.0)
    np.testing.assert_allclose(scores, [[0.2, -0.2]])


def test_equal_answers_teach_nothing() -> None:
    scores = table_scores([0, 0], [2, 0], [2, 1], [0.9, 0.5], shape=(1, 3))
    np.testing.assert_allclose(scores, [[0.25, -0.25, 0.0]], atol=1e-12)
