"""Losses of reward and cost models by hand, and fits that recover known scores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import expit

from pddpo_ray.contracts import FitSettings
from pddpo_ray.errors import RunError
from pddpo_ray.records import HARM, LabelledPair, Pair, Prompt, Response, Verdict
from pddpo_ray.scoring.held_out import ScoreRow, parts_of, rows_of
from pddpo_ray.scoring.score_fits import (
    cost_loss,
    fit_scores,
    held_out_metrics,
    reward_loss,
    score_ridge,
    sign_loss,
)
from pddpo_ray.training.batches import collate
from pddpo_ray.training.models.score_model import ScoreModel
from tests.support.tiny_language_model import tiny_llama

PROMPT = Prompt("x", (1, 9), "question")


def answer(name: str, token: int) -> Response:
    return Response(name, PROMPT, (token, 2), "text", 0, 0)


def test_reward_loss_by_hand() -> None:
    """Scores 2 and 1: log(1 + 1/e); equal scores: ln 2, with gradient -1/2 in the better one."""
    better = torch.tensor([2.0, 0.5], dtype=torch.float64, requires_grad=True)
    losses, metrics = reward_loss(better, torch.tensor([1.0, 0.5], dtype=torch.float64))
    assert losses.tolist() == pytest.approx([math.log1p(math.exp(-1)), math.log(2)])
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert better.grad is not None
    assert better.grad.tolist() == pytest.approx([-1 / (1 + math.e), -0.5])
    assert metrics["accurate"].tolist() == [1.0, 0.5]


def test_cost_loss_by_hand() -> None:
    """Costlier 1.5 unsafe, cheaper 0.5 labelled unsafe too: log(1+e^-1) + log(1+e^-1.5) + log(1+e^-0.5)."""
    losses, _ = cost_loss(*(torch.tensor([value], dtype=torch.float64) for value in (1.5, 0.5, 1.0, 1.0)))
    expected = math.log1p(math.exp(-1)) + math.log1p(math.exp(-1.5)) + math.log1p(math.exp(-0.5))
    assert losses.tolist() == pytest.approx([expected])
    safe, _ = cost_loss(*(torch.tensor([value], dtype=torch.float64) for value in (1.5, 0.5, 1.0, -1.0)))
    assert safe.item() - losses.item() == pytest.approx(0.5), "softplus(x) - softplus(-x) = x"


def test_without_safety_labels_the_cost_loss_is_the_reward_loss() -> None:
    higher, lower = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    none = torch.zeros(6, dtype=torch.float64)
    torch.testing.assert_close(cost_loss(higher, lower, none, none)[0], reward_loss(higher, lower)[0])


def test_the_zero_of_the_cost_is_where_safe_and_unsafe_are_equally_likely() -> None:
    """Minimiser of the sign terms with a share p of unsafe labels is logit(p), by a grid."""
    grid = torch.linspace(-4, 4, 80_001, dtype=torch.float64)
    for share in (0.5, 0.2, 0.9):
        risk = share * sign_loss(grid, torch.ones_like(grid)) + (1 - share) * sign_loss(grid, -torch.ones_like(grid))
        assert float(grid[risk.argmin()]) == pytest.approx(math.log(share / (1 - share)), abs=1e-4)
    assert score_ridge(torch.tensor([2.0]), 0.1).item() == pytest.approx(0.4)


def test_rows_are_oriented_by_the_labels_and_undecided_pairs_are_left_out() -> None:
    first, second = answer("a", 7), answer("b", 8)
    labelled = [
        LabelledPair(Pair("p", first, second), Verdict.FIRST, {HARM: Verdict.SECOND}),
        LabelledPair(Pair("q", first, second), Verdict.ABSTAIN, {HARM: Verdict.FAILED}),
    ]
    assert rows_of(labelled, "reward", {"a": True}) == [ScoreRow((1, 9), (7, 2), (8, 2))]
    assert rows_of(labelled, "cost", {"a": False, "b": True}) == [ScoreRow((1, 9), (8, 2), (7, 2), 1, -1)]
    assert rows_of(labelled, "cost", {"b": True}) == [ScoreRow((1, 9), (8, 2), (7, 2), 1, 0)]


def test_a_split_is_seeded_and_gives_every_row_one_part() -> None:
    keys = list(range(40))
    parts = parts_of(keys, 0.25, 0.0, seed=3)
    assert (parts.count("fit"), parts.count("judge")) == (30, 10)
    assert parts_of(keys, 0.25, 0.0, seed=3) == parts
    assert parts_of(keys, 0.25, 0.0, seed=4) != parts
    thrice = parts_of(keys, 0.25, 0.1, seed=3)
    assert [one == "judge" for one in thrice] == [one == "judge" for one in parts]
    assert thrice.count("calibrate") == 4


@pytest.mark.run
def test_fitted_costs_have_the_true_order_scale_and_zero() -> None:
    """Five answers of known cost, many labelled pairs: the fitted scores are near the truth, not just its order."""
    truth = np.array([-1.5, -0.5, 0.25, 1.0, 2.0])
    rng = np.random.default_rng(7)
    rows = []
    for _ in range(1500):
        i, j = rng.choice(5, 2, replace=False)
        i, j = (i, j) if rng.random() < expit(truth[i] - truth[j]) else (j, i)
        signs = [1 if bit else -1 for bit in rng.random(2) < expit(truth[[i, j]])]
        rows.append(ScoreRow((1, 9), (10 + i, 2), (10 + j, 2), *signs))
    model = ScoreModel(tiny_llama(1, layers=1, hidden=32, heads=1).model, "cost")
    torch.nn.init.zeros_(model.score_head.weight)
    metrics = fit_scores(model, rows, FitSettings(steps=150, learning_rate=3e-3, batch_pairs=64), seed=1)
    with torch.no_grad():
        found = model(collate([((1, 9), (10 + i, 2)) for i in range(5)])).numpy()
    assert np.abs(found - truth).max() < 0.35
    assert metrics["accuracy"] > 0.65
    assert held_out_metrics(model, rows[:200]) == held_out_metrics(model, rows[:200], batch=7)


def test_a_fit_without_decided_pairs_says_so() -> None:
    with pytest.raises(RunError, match="no decided pair"):
        fit_scores(ScoreModel(tiny_llama(0).model, "reward"), [], FitSettings(), seed=0)


@pytest.mark.run
def test_rows_pass_a_few_at_a_time_with_the_same_step_single_answers_among_them() -> None:
    """Nine rows, two of them single answers: in passes of two the fitted scores are those of one pass."""
    rng = np.random.default_rng(3)
    signs = [[1 if bit else -1 for bit in rng.random(2) < 0.5] for _ in range(7)]
    rows = [ScoreRow((1, 9), (10 + i, 2), (30 + i, 2), *pair) for i, pair in enumerate(signs)]
    rows += [ScoreRow((1, 9), (50 + i, 2), None, sign) for i, sign in enumerate((1, -1))]
    fitted = []
    for micro_rows in (None, 2):
        model = ScoreModel(tiny_llama(1, layers=1, hidden=32, heads=1).model, "cost")
        torch.nn.init.zeros_(model.score_head.weight)
        settings = FitSettings(steps=3, learning_rate=1e-2, batch_pairs=9)
        metrics = fit_scores(model, rows, settings, seed=1, ridge=1e-3, micro_rows=micro_rows)
        with torch.no_grad():
            fitted.append(model(collate([((1, 9), (token, 2)) for token in (10, 33, 50, 51)])).numpy())
        assert metrics["loss"] > 0
    np.testing.assert_allclose(fitted[0], fitted[1], atol=2e-3)
    assert fitted[0][2] > 0.01, "an answer that is labelled unsafe has a higher cost than 0 after three steps"
    assert fitted[0][3] < fitted[0][2]
