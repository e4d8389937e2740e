"""Safe RLHF: the terms of its update by hand, a table with a known optimum, a language model, and the page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import logsumexp

from pddpo_lab.methods.settings import PpoSettings
from pddpo_lab.policy_gradient.command import PpoCommand, ScoredAnswer
from pddpo_lab.policy_gradient.losses import (
    advantages,
    clipped_policy_loss,
    clipped_value_loss,
    combined_advantage,
    token_streams,
)
from pddpo_lab.policy_gradient.tables import Tables, update_tables
from pddpo_lab.policy_gradient.update import per_token, token_log_probs
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.records import CostEstimate
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.multipliers.dual import LogMultiplier, limit_state
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.passes.log_probs import ResponseScorer
from tests.support.tiers import in_full
from tests.support.tiny_language_model import save_policy, tiny_llama
from tests.unit.loop.small_run import story
from tests.unit.methods.runs import SMALL, journal_of

RULE = "dual.rule={kind: log, rate: 0.5}"
PPO = "method={kl: 0.3, epochs: 2, batch: 12, learning_rate: 0.05, critic_learning_rate: 0.1}"


# --- mathematics -----------------------------------------------------------------------------------------------------


def test_the_divergence_is_taken_from_the_rewards_and_added_to_the_costs() -> None:
    """kappa 0.1, log-ratios 1 and -2, r = 3, c = 0.5: rewards -0.1, 0.2 + 3; costs 0.1, -0.2 + 0.5; bound 1 clips."""
    ratio = np.array([1.0, -2.0])
    rewards, costs = token_streams(ratio, 3.0, 0.5, kl=0.1, score_clip=50.0)
    np.testing.assert_allclose(rewards, [-0.1, 3.2])
    np.testing.assert_allclose(costs, [0.1, 0.3])
    np.testing.assert_allclose(token_streams(ratio, 3.0, 0.5, kl=0.1, score_clip=1.0)[0], [-0.1, 1.0])
    np.testing.assert_allclose(ratio, [1.0, -2.0])


def test_advantages_by_hand_and_against_the_sum_over_steps() -> None:
    """gamma 1, trace 1: what is still to come minus the value. gamma .9, trace .5: the double sum of the definition."""
    rewards, values = np.array([1.0, -2.0, 4.0]), np.array([0.5, 1.0, 2.0])
    found, returns = advantages(rewards, values, discount=1.0, trace=1.0)
    np.testing.assert_allclose(found, [3.0 - 0.5, 2.0 - 1.0, 4.0 - 2.0])
    np.testing.assert_allclose(returns, [3.0, 2.0, 4.0])
    found, returns = advantages(rewards, values, discount=0.9, trace=0.5)
    deltas = [rewards[t] + 0.9 * ([*values, 0.0][t + 1]) - values[t] for t in range(3)]
    expected = [sum((0.9 * 0.5) ** k * deltas[t + k] for k in range(3 - t)) for t in range(3)]
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(returns, np.array(expected) + values)


def test_advantages_are_weighed_by_the_multiplier() -> None:
    np.testing.assert_allclose(combined_advantage(np.array([4.0]), np.array([1.0]), 1.0), [1.5])
    np.testing.assert_allclose(combined_advantage(np.array([4.0]), np.array([1.0]), 0.0), [4.0])


def test_the_policy_loss_is_clipped_where_a_step_has_gone_far_enough() -> None:
    """rho = 1.5, e = 0.2: a good token earns 1.2 A at most, a bad one pays all of 1.5 A; at rho = 1 the slope is -A."""
    old = torch.zeros(3, dtype=torch.float64)
    new = torch.tensor([math.log(1.5), math.log(1.5), 0.0], dtype=torch.float64, requires_grad=True)
    losses = clipped_policy_loss(new, old, torch.tensor([2.0, -2.0, 3.0], dtype=torch.float64), 0.2)
    assert losses.tolist() == pytest.approx([-2.4, 3.0, -3.0])
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([0.0, 3.0, -3.0])


def test_the_value_loss_keeps_the_larger_error() -> None:
    """Old 0, return 2, new 1.5 with bound 0.5: held at 0.5 it is 1.5 off, (1.5)^2 / 2."""
    values, old, returns = (torch.tensor([value]) for value in (1.5, 0.0, 2.0))
    assert clipped_value_loss(values, old, returns, 0.5).item() == pytest.approx(1.125)
    assert clipped_value_loss(values, old, returns, 5.0).item() == pytest.approx(0.125)


# --- a table with a known optimum ------------------------------------------------------------------------------------

KAPPA = 0.4
REFERENCE = np.log([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
REWARD = np.array([[0.0, 0.5, 1.0, 1.5], [1.2, 0.2, -0.5, 0.6]])
COST = np.array([[-1.0, -0.5, 0.5, 1.5], [1.4, -0.2, -1.0, -0.4]])
SETTINGS = PpoSettings(
    kl=KAPPA, epochs=2, batch=200, learning_rate=0.04, critic_learning_rate=0.1, weight_decay=0.0,
    critic_weight_decay=0.0,
)  # fmt: skip


def optimum(multiplier: float) -> np.ndarray:
    """log of the maximiser of (r - lambda c) / (1 + lambda) - kappa KL, exact."""
    logits = REFERENCE + (REWARD - multiplier * COST) / ((1.0 + multiplier) * KAPPA)
    return logits - logsumexp(logits, axis=1, keepdims=True)


def mean_cost(log_probs: np.ndarray) -> float:
    return float((np.exp(log_probs) * COST).sum() / 2)


def drawn(log_probs: np.ndarray, count: int, rng: np.random.Generator) -> list[ScoredAnswer]:
    draws = [rng.choice(4, size=count // 2, p=np.exp(row) / np.exp(row).sum()).tolist() for row in log_probs]
    cells = [(x, y) for both in zip(*draws, strict=True) for x, y in enumerate(both)]
    return [ScoredAnswer((x,), (y,), REWARD[x, y], COST[x, y]) for x, y in cells]


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    return float(0.5 * np.abs(np.exp(one) - np.exp(other)).sum(axis=1).max())


@pytest.mark.run
@pytest.mark.parametrize("multiplier", [*in_full(0.0), 1.5])
def test_at_a_fixed_multiplier_the_policy_reaches_the_known_optimum(multiplier: float) -> None:
    rng = np.random.default_rng(4)
    tables = Tables(REFERENCE, np.zeros(2), np.zeros(2))
    late = []
    for step in range(45):
        settings = SETTINGS.model_copy(update={"learning_rate": 0.05 if step < 30 else 0.01})
        tables, _ = update_tables(tables, REFERENCE, drawn(tables.log_probs, 400, rng), multiplier, settings, step)
        late.append(tables.log_probs)
    found = np.log(np.mean(np.exp(late[-10:]), axis=0))
    assert total_variation(REFERENCE, optimum(multiplier)) > 0.15
    assert total_variation(found, optimum(multiplier)) < 0.05


@pytest.mark.full
@pytest.mark.slow
def test_with_the_dual_step_policy_and_multiplier_reach_the_known_saddle_point() -> None:
    """The price at which the exact optimum just meets the limit, by bisection, and its policy."""
    best = brentq(lambda multiplier: mean_cost(optimum(multiplier)), 0.01, 20.0)
    rng = np.random.default_rng(5)
    tables = Tables(REFERENCE, np.zeros(2), np.zeros(2))
    state = limit_state("cost", rho=5.0, rule=LogMultiplier(0.25), first=1.0, lower=0.05)
    prices, late = [], []
    for step in range(65):
        settings = SETTINGS.model_copy(update={"learning_rate": 0.06 if step < 35 else 0.015})
        answers = drawn(tables.log_probs, 400, rng)
        costs = np.array([answer.cost for answer in answers])
        estimate = CostEstimate(float(costs.mean()), float(costs.std() / 20), 400, 0, "cost_model")
        state = replace(state, multiplier=min(max(state.rule.next(state, estimate)[0], 0.05), 10.0))
        tables, _ = update_tables(tables, REFERENCE, answers, state.multiplier, settings, step)
        prices.append(state.multiplier)
        late.append(tables.log_probs)
    found = np.log(np.mean(np.exp(late[-20:]), axis=0))
    assert 0.2 < best < 5.0
    assert np.mean(prices[-20:]) == pytest.approx(best, rel=0.15)
    assert abs(mean_cost(found)) < 0.05
    assert total_variation(found, optimum(best)) < 0.06


# --- a language model ------------------------------------------------------------------------------------------------

PROMPT = (1, 9, 4)
GOOD, BAD = (7, 8, 2), (6, 2)


@pytest.fixture
def trainer(tmp_path: Path) -> LocalTrainer:
    store = ArtifactStore(tmp_path / "artifacts")
    reference = store_reference(store, save_policy(tmp_path / "model", seed=3))
    return LocalTrainer(TorchEngine(ResponseScorer(tiny_llama(0))), store, reference)


def command_of(trainer: LocalTrainer, **changes: object) -> PpoCommand:
    answers = tuple(
        ScoredAnswer(PROMPT, answer, reward, cost) for answer, reward, cost in 4 * [(GOOD, 1.0, -1.0), (BAD, -1.0, 1.0)]
    )
    settings = PpoSettings(kl=0.05, epochs=3, batch=4, learning_rate=1e-3, critic_learning_rate=1e-3)
    return replace(PpoCommand(1, trainer.reference, answers, 1.0, None, settings, 7, "policy-1"), **changes)  # type: ignore[arg-type]


def lead(trainer: LocalTrainer, version: object) -> float:
    good, bad = trainer.score(version, [(PROMPT, GOOD), (PROMPT, BAD)])  # type: ignore[arg-type]
    return float(good - bad)


@pytest.mark.run
def test_an_update_raises_what_the_scores_prefer_and_is_repeatable(trainer: LocalTrainer) -> None:
    first = command_of(trainer).run(trainer)
    assert lead(trainer, first.version) > lead(trainer, trainer.reference) + 0.05
    again = command_of(trainer).run(trainer)
    assert (again.version, again.critics) == (first.version, first.critics)
    assert first.metrics["ppo/kl_estimate"] == pytest.approx(0.0, abs=1e-6), "the first batch is the reference's own"


@pytest.mark.run
def test_the_next_update_goes_on_with_policy_and_critics(trainer: LocalTrainer) -> None:
    first = command_of(trainer).run(trainer)
    following = command_of(trainer, sequence=2, result="policy-2", start=first.version, critics=first.critics)
    second = following.run(trainer)
    assert second.metrics["ppo/reward_critic_loss"] < first.metrics["ppo/reward_critic_loss"]
    assert second.critics != first.critics
    assert second.metrics["ppo/kl_estimate"] != 0.0
    without = replace(following, critics=None).run(trainer)
    assert without.version != second.version, "critics matter"


@pytest.mark.slow
def test_token_log_probs_add_up_to_those_of_the_answer(trainer: LocalTrainer) -> None:
    texts = [(PROMPT, GOOD), (PROMPT, BAD)]
    trainer.score(trainer.reference, texts)
    tokens = per_token(token_log_probs(trainer.engine.scorer), texts, torch.device("cpu"))
    assert [len(values) for values in tokens] == [3, 2]
    np.testing.assert_allclose([values.sum() for values in tokens], trainer.score(trainer.reference, texts), atol=1e-5)


# --- the page --------------------------------------------------------------------------------------------------------


def tabular(*overrides: str) -> object:
    return load(
        "tabular",
        ["algorithm=safe-rlhf", *SMALL, RULE, PPO, "rounds=4", "dual.first=1.0", "method.window=40", *overrides],
    )


@pytest.mark.run
def test_a_run_updates_on_the_answers_of_the_policy_before_and_prices_by_the_newest_window(tmp_path: Path) -> None:
    result = run_recipe(tabular(), tmp_path / "run")  # type: ignore[arg-type]
    assert result["rounds"] == 4
    assert result["weights_verified"] is True
    with journal_of(tmp_path / "run") as journal:
        samples = {number: journal.samples(number, "cost") for number in range(5)}
        steps = journal.dual_steps()
        versions = [entry for entry in journal.versions() if entry.stage == "cost"]
    assert [len(answers) for answers in samples.values()] == [24] * 5
    assert {answer.policy_version for answer in samples[0]} == {0}
    assert [entry.base for entry in versions] == [0, *(entry.version.number for entry in versions[:-1])]
    assert [step.estimate.responses for step in steps] == [40] * 4, "the window reaches back into the round before"
    assert all(step.estimate.mode == "cost_model" for step in steps)
    assert len({step.multiplier_after for step in steps}) == 4


@pytest.mark.run
def test_a_run_broken_off_equals_the_unbroken_one(tmp_path: Path) -> None:
    class PowerCut(BaseException):
        pass

    def cut(event: object) -> None:
        inner = getattr(event, "event", None)
        if inner is not None and (inner.round, inner.phase) == (3, "ppo"):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_recipe(tabular(), tmp_path / "cut" / "run", progress=cut)  # type: ignore[arg-type]
    run_recipe(tabular(), tmp_path / "cut" / "run", resume=True)  # type: ignore[arg-type]
    run_recipe(tabular(), tmp_path / "whole" / "run")  # type: ignore[arg-type]
    assert story(tmp_path / "cut" / "run") == story(tmp_path / "whole" / "run")


@pytest.mark.run
def test_labels_are_those_of_the_offline_data_alone(tmp_path: Path) -> None:
    """120 pairs with two labels each and one bit per answer; the rounds are scored by the models."""
    assert run_recipe(tabular(), tmp_path / "run")["labels_used"] == 240 + 240  # type: ignore[arg-type]


def test_what_policy_gradients_cannot_do_is_refused() -> None:
    for wrong in ("model.parameters.kind=lora", "dual.rule={kind: fixed}"):
        with pytest.raises(UserError, match="safe-rlhf needs"):
            load("safe-rlhf", [wrong])


def test_the_paper_recipe_has_the_values_of_the_table() -> None:
    config = load("paper/safe-rlhf")
    assert (config.method["kl"], config.beta) == (0.1, 0.1)
    assert config.method["batch"] == 16 * 8
    assert (config.method["learning_rate"], config.method["weight_decay"]) == (9.65e-6, 0.01)
    assert (config.method["critic_learning_rate"], config.method["critic_weight_decay"]) == (5e-6, 0.1)
    assert (config.dual.first, config.thresholds["cost"], config.method["window"]) == (1.0, -3.0, 128)
    assert config.dual.rule.model_dump()["rate"] == 0.04
    assert math.ceil(4 * 26_900 / config.feedback.responses) == config.rounds
    assert (config.rollout.model_dump()["max_model_len"], config.model.dtype) == (512, "bfloat16")
