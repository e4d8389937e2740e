"""A table as trainer and engine: fits, draws and what both say about themselves, by hand."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from pddpo_lab.methods.settings import PpoSettings
from pddpo_lab.policy_gradient.command import PpoCommand, ScoredAnswer
from pddpo_lab.verify.formulas import one_hot_gram
from pddpo_lab.worlds.tabular.engine import decoded
from pddpo_lab.worlds.tabular.parts import (
    TabularEngine,
    TabularTrainer,
    offsets_of,
    scores_with_margins,
    shares_of,
    squared_residual,
    wins_of,
)
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.errors import RunError
from pddpo_ray.records import Decoding, LossOptimism, Objective, PairRow, PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import tensors_sha256

WORLD = trap_world()
ROWS = (
    PairRow("a", (1,), (2,), (5,), weight=0.25),
    PairRow("b", (1,), (5,), (2,), weight=1.0),
    PairRow("c", (3,), (0,), (7,), weight=0.25),
)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def command(trainer: TabularTrainer, objective: Objective, optimism: LossOptimism | None = None) -> FitCommand:
    return FitCommand(4, Start(trainer.reference), objective, ROWS, FitSettings(), 7, "policy-4", optimism)


@pytest.mark.parametrize("stage", ["reward", "cost"])
def test_a_fit_is_the_base_times_its_scores_over_the_temperature(store: ArtifactStore, stage: str) -> None:
    """Weights 1/4 against 1 in one pair: a lead of log 4 for the winner up to the ridge; a lone win goes to the box."""
    trainer = TabularTrainer(WORLD, store)
    objective = Objective(stage, trainer.reference, 0.7)  # type: ignore[arg-type]
    result = trainer.execute(command(trainer, objective))
    assert (result.version.number, result.version.name) == (4, "policy-4")
    assert result.workers == (os.getpid(),)
    stored = store.read_tensors(result.version.path, result.version.sha256)
    assert stored["log_probs"].dtype == stored["scores"].dtype == np.float64
    sign = 1.0 if stage == "reward" else -1.0
    expected = np.zeros((4, 8))
    expected[1, 5], expected[1, 2] = sign * math.log(4) / 2, -sign * math.log(4) / 2
    bound = WORLD.oracle.reward_max if stage == "reward" else WORLD.oracle.cost_max
    np.testing.assert_allclose(stored["scores"][1], expected[1], atol=1e-3)
    assert stored["scores"][3, 0] == pytest.approx(sign * bound)
    assert stored["scores"][3, 7] == pytest.approx(-sign * bound)
    policy = WORLD.oracle.reference * np.exp(sign * stored["scores"] / 0.7)
    np.testing.assert_allclose(np.exp(stored["log_probs"]), policy / policy.sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(trainer.table(result.version), stored["log_probs"])
    lead = sign * (stored["scores"][1, 5] - stored["scores"][1, 2])
    losses = [0.25 * math.log1p(math.exp(lead)), math.log1p(math.exp(-lead)), 0.25 * math.log1p(math.exp(-2 * bound))]
    assert result.metrics["fit/loss"] == pytest.approx(sum(losses) / 1.5)
    assert result.metrics["fit/pairs"] == 3.0
    assert 0.0 <= result.metrics["fit/seconds"] < 600.0


def test_little_data_is_not_divided_by_less_than_1(store: ArtifactStore) -> None:
    trainer = TabularTrainer(WORLD, store)
    light = FitCommand(
        1, Start(trainer.reference), Objective("reward", trainer.reference, 0.7), ROWS[:1], FitSettings(), 7, "r"
    )
    lead = 2 * WORLD.oracle.reward_max
    assert trainer.execute(light).metrics["fit/loss"] == pytest.approx(0.25 * math.log1p(math.exp(-lead)), rel=1e-3)


@pytest.mark.parametrize("stage", ["reward", "cost"])
@pytest.mark.parametrize("score_max", [None, 0.3])
def test_margins_are_part_of_the_logit_and_scores_stay_in_the_asked_box(
    store: ArtifactStore, stage: str, score_max: float | None
) -> None:
    trainer = TabularTrainer(WORLD, store)
    objective = Objective(stage, trainer.reference, 0.7, margins=(0.5, -0.25, 3.0), score_max=score_max)  # type: ignore[arg-type]
    stored = trainer.execute(command(trainer, objective)).version
    scores = store.read_tensors(stored.path, stored.sha256)["scores"]
    sign = 1.0 if stage == "reward" else -1.0
    bound = 2.0 if score_max is None else score_max

    def loss(s: np.ndarray) -> float:
        u = sign * np.array([s[0] - s[1], s[1] - s[0], s[2] - s[3]]) + [0.5, -0.25, 3.0]
        return float([0.25, 1.0, 0.25] @ np.logaddexp(0.0, -u) + 0.5e-4 * s @ s)

    best = minimize(loss, np.zeros(4), bounds=[(-bound, bound)] * 4, options={"ftol": 1e-15, "gtol": 1e-9})
    np.testing.assert_allclose(scores[[1, 1, 3, 3], [2, 5, 0, 7]], best.x, atol=2e-3)
    assert np.count_nonzero(scores) <= 4
    again = scores_with_margins(ROWS, objective, WORLD.shape, bound)
    np.testing.assert_allclose(again, scores, atol=1e-9)


@pytest.mark.parametrize("stage", ["reward", "cost"])
def test_a_bonus_of_all_answers_is_added_to_the_reward_or_taken_off_the_cost(store: ArtifactStore, stage: str) -> None:
    """Margins that are the bonus's own leave the likelihood as it is; the policy carries the bonus everywhere."""
    trainer = TabularTrainer(WORLD, store)
    bonus = np.random.default_rng([2]).uniform(0.0, 1.0, size=(4, 8))
    margins = tuple(float(bonus[r.prompt[0], r.rejected[0]] - bonus[r.prompt[0], r.chosen[0]]) for r in ROWS)
    plain = Objective(stage, trainer.reference, 0.7)  # type: ignore[arg-type]
    with_bonus = Objective(stage, trainer.reference, 0.7, None, margins, tuple(bonus.ravel().tolist()))  # type: ignore[arg-type]
    one, other = (trainer.execute(command(trainer, objective)).version for objective in (plain, with_bonus))
    scores = [store.read_tensors(v.path, v.sha256)["scores"] for v in (one, other)]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-9)
    moved = trainer.table(other) - trainer.table(one) - bonus / 0.7
    np.testing.assert_allclose(moved - moved[:, :1], 0.0, atol=1e-9)
    left = replace(with_bonus, margins=tuple(margin + 0.5 for margin in margins))
    offsets = offsets_of(ROWS, left, bonus)
    where = [(1, 2, 5), (1, 5, 2), (3, 0, 7)] if stage == "reward" else [(1, 5, 2), (1, 2, 5), (3, 7, 0)]
    assert [offsets[cell] for cell in where] == pytest.approx([-0.5] * 3)
    assert np.count_nonzero(offsets) == 3
    with pytest.raises(ValueError, match="zip"):
        offsets_of(ROWS[:2], left, bonus)


def test_counts_by_hand() -> None:
    assert shares_of([((1,), (2,)), ((1,), (2,)), ((0,), (0,)), ((1,), (1,))], (2, 3)).tolist() == [
        [0.25, 0.0, 0.0], [0.0, 0.25, 0.5],
    ]  # fmt: skip
    wins = wins_of([*ROWS, ROWS[0]], WORLD.shape, costs=False)
    assert (wins[1, 2, 5], wins[1, 5, 2], wins[3, 0, 7], wins.sum()) == (0.5, 1.0, 0.25, 1.75)
    by_costs = wins_of([*ROWS, ROWS[0]], WORLD.shape, costs=True)
    np.testing.assert_array_equal(by_costs, wins.swapaxes(1, 2))
    counts = np.array([[0.0, 3.0, 0.0], [1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    assert one_hot_gram(counts).tolist() == [[4.0, -4.0, 0.0], [-4.0, 6.0, -2.0], [0.0, -2.0, 2.0]]
    np.testing.assert_array_equal(one_hot_gram(np.stack([counts, 2 * counts]))[1], 2 * one_hot_gram(counts))


@pytest.mark.parametrize("top_p", [0.4, 0.5, 0.79, 0.8, 0.81, 1.0])
def test_the_nucleus_is_the_fewest_answers_that_hold_the_asked_mass(top_p: float) -> None:
    """Probabilities .2, .5, 0, .3: the first alone up to .5, then .3 with it up to .8, then all."""
    with np.errstate(divide="ignore"):
        log_probs = np.log([0.2, 0.5, 0.0, 0.3])
    kept = [0.0, 1.0, 0.0, 0.0] if top_p <= 0.5 else [0.0, 0.625, 0.0, 0.375] if top_p < 0.8 else None
    found = decoded(log_probs, Decoding(temperature=1.0, top_p=top_p))
    if kept is not None:
        assert found.tolist() == pytest.approx(kept)
    elif top_p > 0.8:
        assert found.tolist() == pytest.approx([0.2, 0.5, 0.0, 0.3])
    squared = decoded(log_probs, Decoding(temperature=0.5, top_p=1.0))
    assert squared.tolist() == pytest.approx([0.04 / 0.38, 0.25 / 0.38, 0.0, 0.09 / 0.38])


def test_an_engine_delivers_draws_and_scores_what_it_was_given(store: ArtifactStore) -> None:
    """Each draw is the inverse of the cumulative chances at the prompt's own uniforms."""
    trainer = TabularTrainer(WORLD, store)
    version = trainer.execute(command(trainer, Objective("reward", trainer.reference, 0.7))).version
    engine = TabularEngine(WORLD, store, "table-7")
    for delivered in (trainer.reference, version):
        found = engine.deliver(delivered)
        tensors = store.read_tensors(delivered.path, delivered.sha256)
        assert (found.engine, found.version, found.tensors) == ("table-7", delivered.number, 2)
        assert found.sha256 == tensors_sha256(tensors.items()) == delivered.sha256
        assert 0.0 <= found.seconds < 600.0
        assert engine.version == delivered.number
    table = trainer.table(version)
    prompts = [WORLD.prompts[3], WORLD.prompts[1]]
    draws = engine.sample(prompts, [5, 6], [4, 2], Decoding(temperature=0.8))
    assert [len(one) for one in draws] == [4, 2]
    for x, seed, own in ((3, 5, draws[0]), (1, 6, draws[1])):
        chances = np.exp(table[x] / 0.8)
        cumulative = np.cumsum(chances / chances.sum())
        answers = [
            int(np.searchsorted(cumulative, u, side="right")) for u in np.random.default_rng(seed).random(len(own))
        ]
        expected: list[Any] = [((y,), f"answer {y}", pytest.approx(table[x, y])) for y in answers]
        assert own == expected
    assert engine.score(prompts, [(2,), (7,)]).tolist() == [table[3, 2], table[1, 7]]
    with pytest.raises(ValueError, match="zip"):
        engine.score(prompts, [(2,)])
    with pytest.raises(ValueError, match="zip"):
        engine.sample(prompts, [5], 2, Decoding())
    engine.close()
    with pytest.raises(RunError, match="no version was delivered"):
        engine.score(prompts, [(2,), (7,)])


def test_a_trainer_reads_tables_again_after_it_was_closed(store: ArtifactStore) -> None:
    trainer = TabularTrainer(WORLD, store)
    assert (trainer.reference.number, trainer.reference.name) == (0, "reference")
    np.testing.assert_allclose(np.exp(trainer.table(trainer.reference)), WORLD.oracle.reference)
    kept = trainer.table(trainer.reference)
    trainer.close()
    assert trainer.table(trainer.reference) is not kept
    np.testing.assert_array_equal(trainer.table(trainer.reference), kept)
    assert store.read_tensors(trainer.reference.path, trainer.reference.sha256)["scores"].tolist() == [[0.0] * 8] * 4
    asked = [WORLD.response(2, 5, "a"), WORLD.response(0, 1, "b")]
    assert trainer.log_probs(trainer.reference, asked).tolist() == [kept[2, 5], kept[0, 1]]
    features = trainer.features(asked)
    assert features.shape == (2, 32)
    assert [np.flatnonzero(row).tolist() for row in features] == [[21], [1]]
    assert features.sum() == 2.0


@pytest.mark.run
def test_an_update_is_stored_with_its_critics_under_their_own_names(store: ArtifactStore) -> None:
    trainer = TabularTrainer(WORLD, store)
    answers = tuple(ScoredAnswer((x,), (y,), 1.0 + y, -0.5 * x) for x in range(4) for y in range(4))
    made = PpoCommand(3, trainer.reference, answers, 0.5, None, PpoSettings(), 7, "policy-3").run(trainer)
    assert (made.version.number, made.version.name, made.workers) == (3, "policy-3", (os.getpid(),))
    assert made.critics is not None
    assert made.critics.reward[0].startswith("reward-critic")
    assert made.critics.cost[0].startswith("cost-critic")
    stored = store.read_tensors(made.version.path, made.version.sha256)
    assert stored["scores"].tolist() == [[0.0] * 8] * 4
    assert not np.array_equal(stored["log_probs"], trainer.table(trainer.reference))
    elsewhere = PpoCommand(3, made.version, answers, 0.5, made.critics, PpoSettings(), 7, "policy-4")
    moved = elsewhere.run(trainer)
    assert moved.critics != made.critics
    assert isinstance(moved.version, PolicyVersion)


@pytest.mark.run
def test_an_update_by_groups_learns_from_their_leads_and_stores_no_critic(store: ArtifactStore) -> None:
    """All answers of a prompt are worth the same: no lead, and so no step, where values alone would make one."""
    trainer = TabularTrainer(WORLD, store)
    answers = tuple(ScoredAnswer((x,), (y,), 1.0 + x, -0.5 * x) for x in range(4) for y in range(4))
    alike = PpoCommand(3, trainer.reference, answers, 0.5, None, PpoSettings(), 7, "policy-3", group=4)
    made = alike.run(trainer)
    assert made.critics is None
    np.testing.assert_allclose(trainer.table(made.version), trainer.table(trainer.reference), atol=1e-9)


@pytest.mark.parametrize(("stage", "bound"), [("reward", 0.75), ("cost", 0.25)])
def test_each_stage_has_its_own_box(store: ArtifactStore, stage: str, bound: float) -> None:
    world = replace(WORLD, oracle=replace(WORLD.oracle, reward_max=0.75, cost_max=0.25))
    trainer = TabularTrainer(world, store)
    made = trainer.execute(command(trainer, Objective(stage, trainer.reference, 0.7))).version  # type: ignore[arg-type]
    assert np.abs(store.read_tensors(made.path, made.sha256)["scores"]).max() == bound


def test_the_loss_of_measured_differences_is_their_weighted_squared_distance() -> None:
    """Differences of .5, -.5 and .5 against 1, -.5 and 2, weighed 1/4, 1 and 1/4."""
    scores = np.zeros(WORLD.shape)
    scores[1, 2], scores[1, 5], scores[3, 0], scores[3, 7] = 0.75, 0.25, 1.0, 0.5
    objective = Objective("cost", PolicyVersion(0, "reference", "", ""), 0.7, margins=(1.0, -0.5, 2.0), values=True)
    assert squared_residual(ROWS, objective, scores) == pytest.approx((0.25 * 0.25 + 0.25 * 2.25) / 1.5)
