"""Methods and trainers end to end on small things: what they return, journal and store, and margins on texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pddpo_lab.methods.caid import resumed
from pddpo_lab.methods.settings import PpoSettings
from pddpo_lab.policy_gradient.command import Critics, PpoCommand, ScoredAnswer
from pddpo_lab.worlds.tabular.parts import TabularTrainer
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import Journal
from pddpo_ray.parts.dual_step import DualController, LocalDual, journalled_estimates
from pddpo_ray.records import CostEstimate, Objective, PairRow, UniformMixture
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.multipliers.dual import DualState, ProjectedFixed, limit_state
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.passes.log_probs import ResponseScorer
from tests.support.method_modules import METHODS
from tests.support.tiny_language_model import save_policy, tiny_llama
from tests.unit.loop.small_run import finish, small
from tests.unit.methods.runs import NEEDS, config_of, journal_of

RULE = ProjectedFixed(rounds=4, first=1.0, cost_max=2.0)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as opened:
        yield opened


@pytest.mark.run
@pytest.mark.parametrize("method", NEEDS)
def test_a_method_returns_the_policies_of_its_rounds(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, or the last alone where docs/methods.md says so."""
    last = method in ("c-dpo", "caid", "pd-dpo-adalag")
    returned: list[UniformMixture] = []
    page, run = METHODS[method], METHODS[method].run
    monkeypatch.setattr(page, "run", lambda *parts: returned.append(run(*parts)))
    run_recipe(config_of(method), tmp_path / "run")
    with journal_of(tmp_path / "run") as journal:
        policies = tuple(journal.policies)
    assert policies
    assert returned[0].policies == (policies[-1:] if last else policies)


@pytest.mark.run
def test_a_merged_policys_cost_is_journalled_at_the_share_of_the_multiplier(tmp_path: Path) -> None:
    run_recipe(config_of("p-sacpo", "method.share=0.25"), tmp_path / "run")
    with journal_of(tmp_path / "run") as journal:
        assert [step.multiplier_before for step in journal.dual_steps()] == pytest.approx([0.25 * 1.4])


def test_a_resumed_method_goes_on_at_its_newest_multiplier(journal: Journal) -> None:
    dual = DualController(LocalDual(DualState((limit_state("cost", rho=2.0, rule=RULE),))), journal)
    parts: Any = SimpleNamespace(journal=journal)
    assert resumed(parts, 0.9) == 0.9
    for number in journal.rounds(3):
        dual.observe([CostEstimate(0.8, 0.1, 9, 5)], multiplier=0.9, following=0.1 * number)
        # the round is not finished: done again, it has the multiplier of the round before
        assert resumed(parts, 0.9) == pytest.approx(0.9 if number == 1 else 0.1 * (number - 1))
    assert resumed(parts, 0.9) == pytest.approx(0.3)


def test_estimates_come_back_with_each_constraints_variance_within_prompts(journal: Journal) -> None:
    dual = DualController(LocalDual(DualState(tuple(limit_state(n, rho=2.0, rule=RULE) for n in "ab"))), journal)
    for number in journal.rounds(2):
        both = (("a", 0.5 * number), ("b", None))
        dual.step([CostEstimate(0.8, 0.1, 9, 5, constraint=name, within_variance=known) for name, known in both])
    found = [
        (taken.round, one.constraint, one.within_variance)
        for taken in journalled_estimates(journal)
        for one in taken.limits
    ]
    assert sorted(found, key=str) == [(1, "a", 0.5), (1, "b", None), (2, "a", 1.0), (2, "b", None)]


@pytest.mark.run
def test_a_run_that_keeps_some_pairs_says_how_many_there_were(tmp_path: Path) -> None:
    told = finish(small("explore.keep=3", rounds=1), tmp_path / "run")
    assert told["exact"][-1]["explore/found"] >= told["exact"][-1]["explore/pairs"] == 3.0
    assert len([entry for entry in told["pairs"] if entry.round == 1]) == 3


@pytest.mark.run
def test_a_tables_critics_have_one_value_per_prompt(tmp_path: Path) -> None:
    world = trap_world()
    trainer = TabularTrainer(world, ArtifactStore(tmp_path / "store"))
    answers = tuple(ScoredAnswer((x,), (y,), 1.0 + y, -0.5) for x in range(4) for y in range(4))
    command = PpoCommand(1, trainer.reference, answers, 0.5, None, PpoSettings(), 7, "policy-1")
    result = command.run(trainer)
    assert result.critics is not None
    for stored in (result.critics.reward, result.critics.cost):
        assert trainer.store.read_tensors(*stored)["values"].shape == (4,)


@pytest.mark.run
def test_an_update_goes_on_with_the_critics_that_it_is_given(tmp_path: Path) -> None:
    """At a rate of nearly nothing they come back as they were, reward and cost each in its place."""
    world = trap_world()
    trainer = TabularTrainer(world, ArtifactStore(tmp_path / "store"))
    values = {"reward": np.array([1.0, 2.0, 3.0, 4.0]), "cost": np.array([-1.0, 0.5, 0.0, 7.0])}
    given = Critics(*(trainer.store.write_tensors(name, {"values": value}) for name, value in values.items()))
    answers = tuple(ScoredAnswer((x,), (y,), 1.0 + y, -0.5) for x in range(4) for y in range(4))
    settings = PpoSettings(critic_learning_rate=1e-12)
    result = PpoCommand(1, trainer.reference, answers, 0.5, given, settings, 7, "policy-1").run(trainer)
    assert result.critics is not None
    for name, stored in (("reward", result.critics.reward), ("cost", result.critics.cost)):
        np.testing.assert_allclose(trainer.store.read_tensors(*stored)["values"], values[name], atol=1e-6)


@pytest.mark.run
def test_the_loss_of_texts_at_their_base_is_that_of_the_margins_alone(tmp_path: Path) -> None:
    """At policy = base the logit is the margin, so the first step's loss is the mean of softplus(-margin)."""
    store = ArtifactStore(tmp_path / "store")
    reference = store_reference(store, save_policy(tmp_path / "model", seed=3))
    trainer = LocalTrainer(TorchEngine(ResponseScorer(tiny_llama(0))), store, reference)
    rows = tuple(PairRow(f"r{i}", (1, 9, 4), (7, 8, 2), (6, 2)) for i in range(6))
    settings = FitSettings(steps=1, learning_rate=1e-3, batch_pairs=6, support=0.0)
    margins = (0.7, -1.2, 2.0, 0.0, -3.0, 0.4)
    for given in ((), margins):
        objective = Objective("reward", reference, 0.5, margins=given)
        result = trainer.execute(FitCommand(1, Start(reference), objective, rows, settings, 7, "reward-1"))
        assert result.metrics["fit/loss"] == pytest.approx(
            np.mean(np.log1p(np.exp(-np.array(given or [0.0])))), abs=1e-5
        )
        assert result.metrics["fit/off_support_per_token"] == 0.0
