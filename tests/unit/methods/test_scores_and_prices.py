"""Logistic fits, models, merged weights and the explicit dual against independent answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logit

from pddpo_lab.methods.explicit_dual import descend, dual_slope
from pddpo_lab.methods.linear_scores import LinearScorer, fit_cost, fit_reward
from pddpo_lab.methods.merging import merge_versions, merged_tables, merged_weights
from pddpo_lab.methods.scoring import ScoringController, ScoringPlan
from pddpo_lab.mle import bounded_logistic, box_mle, win_counts
from pddpo_lab.worlds.tabular.world import TabularWorld, draw_answers, random_world, trap_world
from pddpo_ray.records import HARM, Array, Decoding, LabelledPair, Pair, PolicyVersion, Prompt, Response, Verdict
from pddpo_ray.storage.artifacts import ArtifactStore


def write(path: Path, text: str) -> None:
    path.write_text(text)


def one_hot(world: TabularWorld):  # type: ignore[no-untyped-def]
    def features(responses: list[Response]) -> np.ndarray:
        rows = np.zeros((len(responses), world.shape[0] * world.shape[1]))
        for row, response in zip(rows, responses, strict=True):
            row[np.ravel_multi_index(world.cell(response), world.shape)] = 1.0
        return rows

    return features


# --- fits ------------------------------------------------------------------------------------------------------------


def test_bounded_logistic_of_one_number_by_hand() -> None:
    """30 wins and 10 losses with a margin m in every logit: theta + m = logit(3/4)."""
    rows = np.concatenate([np.ones((30, 1)), -np.ones((10, 1))])
    plain = bounded_logistic(rows, ridge=0.0)
    # a margin of a win adds to its logit, one of a loss to the loss's
    shifted = bounded_logistic(rows, margins=0.4 * rows[:, 0], ridge=0.0)
    assert plain[0] == pytest.approx(logit(0.75), abs=1e-6)
    assert shifted[0] == pytest.approx(logit(0.75) - 0.4, abs=1e-6)
    assert bounded_logistic(rows, bound=0.5)[0] == pytest.approx(0.5)


def test_bounded_logistic_without_rows_is_zero() -> None:
    np.testing.assert_array_equal(bounded_logistic(np.zeros((0, 3))), np.zeros(3))


def test_a_linear_reward_on_one_hot_features_is_the_box_maximum_likelihood() -> None:
    world = trap_world()
    data = world.offline(0)
    found = fit_reward(one_hot(world), data, bound=2.0).reshape(world.shape)
    cells = [(world.cell(item.pair.first), world.cell(item.pair.second), item.helpful) for item in data]
    winners = [a if verdict is Verdict.FIRST else b for a, b, verdict in cells]
    losers = [b if verdict is Verdict.FIRST else a for a, b, verdict in cells]
    prompts = np.array([x for x, _ in winners])
    wins = win_counts(prompts, np.array([y for _, y in winners]), np.array([y for _, y in losers]), shape=world.shape)
    np.testing.assert_allclose(found, box_mle(wins, 2.0), atol=2e-3)


def test_safety_bits_give_the_cost_its_zero() -> None:
    """Answer 0 is unsafe in 3 of 4 labels, answer 1 in 1 of 4, and each beats the other as often: +-logit(3/4)."""
    world = trap_world()
    data: list[LabelledPair] = []
    unsafe: dict[str, bool] = {}
    for index in range(40):
        pair = Pair(f"p{index}", world.response(0, 0, f"a{index}"), world.response(0, 1, f"b{index}"))
        costlier = Verdict.FIRST if index % 10 != 0 else Verdict.SECOND
        data.append(LabelledPair(pair, Verdict.FIRST, {HARM: costlier}))
        unsafe |= {f"a{index}": index % 4 != 0, f"b{index}": index % 4 == 0}
    costs = fit_cost(one_hot(world), data, unsafe, ridge=1e-9)
    # stationarity by hand: with c = (t, -t), pairs pull 40 (0.9 - s(2t)), bits 2 * 40 (0.75 - s(t))
    t = costs[0]
    assert costs[1] == pytest.approx(-t, abs=1e-4)
    slope = 2 * 40 * (0.9 - 1 / (1 + np.exp(-2 * t))) + 2 * 40 * (0.75 - 1 / (1 + np.exp(-t)))
    assert slope == pytest.approx(0.0, abs=1e-3)
    np.testing.assert_allclose(costs[2:], 0.0, atol=1e-6)
    assert fit_cost(one_hot(world), data, unsafe, bound=0.5)[:2] == pytest.approx([0.5, -0.5]), "inside its box"


@pytest.mark.parametrize("rate", [False, True])
def test_a_scorers_cost_is_moved_to_where_labels_of_the_reference_put_its_mean_or_rate(rate: bool) -> None:
    """Two prompts of weights 3/4 and 1/4, whose two answers score 1, 3 and -2, 0; the labels say .4."""
    prompts = [Prompt(f"p{number}", (number,), "?") for number in range(2)]
    answers = [Response(f"a{row}", prompts[row // 2], (row,), "", 1, 0) for row in range(4)]
    plan = ScoringPlan(
        seed=0, beta=1.0, threshold=0.4, reward_max=4.0, cost_max=4.0, upper=1.0, answers=2, bounded=True, ridge=0.1,
        decoding=Decoding(max_tokens=1), rate=rate, prior=(0.75, 0.25),
    )  # fmt: skip
    nothing: Any = None
    scoring = ScoringController(plan, nothing, nothing, nothing, nothing, prompts, nothing)
    scored = np.array([1.0, 3.0, -2.0, 0.0])

    def scorer(responses: Sequence[Response]) -> tuple[Array, Array]:
        return np.array([0.0, 1.0, 2.0, 3.0]), scored

    rewards, costs = scoring.anchored(scorer, answers, 0.4)(answers)
    assert rewards.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert np.average(costs.reshape(2, 2).mean(axis=1), weights=plan.prior) == pytest.approx(0.4)
    shifts = (logit(costs) if rate else costs) - scored
    assert shifts == pytest.approx(np.full(4, shifts[0])), "all by the same"


@pytest.mark.slow
def test_models_from_many_labels_agree_with_the_truth_that_they_never_saw() -> None:
    world = random_world(1)
    covered = TabularWorld(world.oracle, world.baseline, np.ones(world.shape, dtype=bool), 6000)
    data = covered.offline(0)
    answers = [answer for item in data for answer in (item.pair.first, item.pair.second)]
    labels = covered.labeller().safety(answers, 1, seed=5)
    unsafe = {item.response.id: item.labels[0] is Verdict.UNSAFE for item in labels}
    features = one_hot(covered)
    reward, cost = fit_reward(features, data, bound=2.0), fit_cost(features, data, unsafe, bound=2.0)
    scorer = LinearScorer(features, reward, cost, 2.0, 2.0)
    cells = [covered.response(x, y, f"{x}-{y}") for x in range(4) for y in range(8)]
    rewards, costs = (values.reshape(4, 8) for values in scorer(cells))
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    truth = world.oracle.reward - world.oracle.reward.mean(axis=1, keepdims=True)
    seen = world.oracle.reference > 0.05
    assert np.abs(costs - world.oracle.cost)[seen].mean() < 0.2
    assert np.corrcoef(centred.ravel(), truth.ravel())[0, 1] > 0.95


# --- price -----------------------------------------------------------------------------------------------------------


def sampled(world: TabularWorld, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True rewards and gains of `count` answers of the reference per prompt. [X, count] each"""
    uniforms = np.random.default_rng(seed).random((count, world.shape[0]))
    answers = draw_answers(world.oracle.reference, uniforms).T
    picked = np.arange(world.shape[0])[:, None], answers
    return world.oracle.reward[picked], world.oracle.threshold - world.oracle.cost[picked]


def dual_value(
    rewards: np.ndarray, gains: np.ndarray, beta: float, multiplier: float, prior: np.ndarray | None = None
) -> float:
    """D(multiplier), as its definition has it: beta times the log of a mean of exponentials."""
    values = beta * np.log(np.exp((rewards + multiplier * gains) / beta).mean(axis=1))
    return float(np.average(values, weights=prior))


def test_twenty_thousand_answers_of_the_reference_recover_the_multiplier_of_the_world() -> None:
    world = trap_world()
    rewards, gains = sampled(world, 20_000, 0)
    found = descend(rewards, gains, world.oracle.beta, upper=10.0, prior=world.oracle.prior)
    assert found.multiplier == pytest.approx(world.oracle.optimum.multiplier, abs=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_descent_finds_the_minimum_that_scipy_finds(seed: int) -> None:
    world = random_world(seed)
    rewards, gains = sampled(world, 64, seed)
    found = descend(rewards, gains, 0.1, upper=5.0, prior=world.oracle.prior)
    best = minimize_scalar(
        lambda x: dual_value(rewards, gains, 0.1, x, world.oracle.prior), bounds=(0, 5), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    assert found.multiplier == pytest.approx(best.x, abs=1e-4)
    assert 1.0 <= found.sample_size <= 64.0


def test_the_slope_of_the_dual_is_its_finite_difference() -> None:
    rewards, gains = sampled(random_world(2), 32, 1)
    ahead, behind = (dual_value(rewards, gains, 0.1, 0.7 + step) for step in (1e-5, -1e-5))
    assert dual_slope(rewards, gains, 0.1, 0.7) == pytest.approx((ahead - behind) / 2e-5, abs=1e-6)


def test_a_limit_that_no_sampled_answer_keeps_ends_at_the_upper_end() -> None:
    rewards, gains = np.zeros((1, 2)), -np.ones((1, 2))
    assert descend(rewards, gains, 0.1, upper=3.0).multiplier == 3.0


def test_a_limit_that_everything_keeps_costs_nothing() -> None:
    assert descend(np.array([[0.3, 0.1]]), np.ones((1, 2)), 0.1, upper=3.0).multiplier == 0.0


def test_a_constant_per_prompt_in_the_rewards_moves_no_price() -> None:
    rewards, gains = sampled(random_world(0), 64, 3)
    shift = np.array([[1.0], [-2.0], [0.5], [3.0]])
    plain, shifted = (descend(values, gains, 0.1, upper=5.0) for values in (rewards, rewards + shift))
    assert shifted.multiplier == pytest.approx(plain.multiplier, abs=1e-6)


# --- merging ---------------------------------------------------------------------------------------------------------


def test_weights_are_merged_linearly_and_keep_their_type() -> None:
    base = {"w": torch.tensor([1.0, -2.0]), "b": torch.tensor([4.0], dtype=torch.bfloat16)}
    other = {"w": torch.tensor([3.0, 2.0]), "b": torch.tensor([8.0], dtype=torch.bfloat16)}
    merged = merged_weights(base, other, 0.25)
    assert merged["w"].tolist() == [1.5, -1.0]
    assert (merged["b"].item(), merged["b"].dtype) == (5.0, torch.bfloat16)
    exact = merged_weights({"w": torch.tensor([1 / 3.0], dtype=torch.float64)}, {"w": torch.zeros(1)}, 0.0)
    assert exact["w"].item() == 1 / 3.0


def test_merged_tables_are_normalised_and_keep_impossible_answers_impossible() -> None:
    with np.errstate(divide="ignore"):
        base = np.log([[0.5, 0.5, 0.0]])
        other = np.log([[0.8, 0.2, 0.0]])
    merged = merged_tables(
        {"log_probs": base, "scores": np.zeros((1, 3))}, {"log_probs": other, "scores": np.ones((1, 3))}, 0.5
    )
    expected = np.sqrt([0.4, 0.1]) / np.sqrt([0.4, 0.1]).sum()
    np.testing.assert_allclose(np.exp(merged["log_probs"]), [[*expected, 0.0]])
    np.testing.assert_allclose(merged["scores"], 0.5)


def test_a_merged_model_is_stored_with_the_files_of_its_base(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)

    def stored(number: int, values: list[float], config: str) -> PolicyVersion:
        path, sha256 = store.write_tensors(
            f"policy-{number}",
            {"w": torch.tensor(values)},
            fill=lambda folder: write(folder / "config.json", config),
        )
        return PolicyVersion(number, f"policy-{number}", sha256, path)

    base, other = stored(1, [1.0, 2.0], "base"), stored(2, [3.0, -2.0], "other")
    merged = merge_versions(store, base, other, 0.75, 3, "merged-1")
    assert (merged.number, merged.name) == (3, "merged-1")
    assert store.read_torch(merged.path, merged.sha256)["w"].tolist() == [2.5, -1.0]
    assert (store.folder(merged.path) / "config.json").read_text() == "base"
