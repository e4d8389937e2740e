"""The XPO-style term in a table: its gradient, its direction, and a run by recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import check_grad

from pddpo_lab.mle import _value_and_slope, box_mle, optimistic_mle, win_counts
from pddpo_lab.worlds.tabular.parts import TabularTrainer, shares_of
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.records import LossOptimism, Objective, PairRow
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import JOURNAL
from tests.unit.loop.small_run import small

GENERATOR = np.random.default_rng(4)
PROMPTS = GENERATOR.integers(0, 2, 60)
FIRST = GENERATOR.integers(0, 3, 60)
WINS = win_counts(PROMPTS, FIRST, (FIRST + 1 + GENERATOR.integers(0, 2, 60)) % 3, shape=(2, 5))
BASE = np.log(GENERATOR.dirichlet(np.ones(5), 2))
ANSWERS = np.array([[0.3, 0.2, 0.0, 0.0, 0.0], [0.0, 0.1, 0.4, 0.0, 0.0]])


def policy(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(BASE - scores / 0.3)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def test_gradient_of_the_optimistic_likelihood_by_finite_differences() -> None:
    scores = np.random.default_rng(1).normal(size=10)

    def at(flat: np.ndarray) -> tuple[float, np.ndarray]:
        return _value_and_slope(flat.reshape(2, 5), WINS, BASE, 0.3, ANSWERS, 0.05)

    assert check_grad(lambda flat: at(flat)[0], lambda flat: at(flat)[1], scores) < 1e-4


def test_without_weight_the_term_leaves_the_likelihoods_maximum() -> None:
    found = optimistic_mle(WINS, 2.0, log_base=BASE, temperature=0.3, answers=ANSWERS, alpha=0.0)
    np.testing.assert_array_equal(found, box_mle(WINS, 2.0))


def test_more_weight_takes_more_mass_from_the_baselines_answers_and_scores_stay_in_their_box() -> None:
    masses = []
    for alpha in (0.0, 1e-3, 1e-2, 1e-1):
        scores = optimistic_mle(WINS, 2.0, log_base=BASE, temperature=0.3, answers=ANSWERS, alpha=alpha)
        assert np.abs(scores).max() <= 2.0
        masses.append(float((ANSWERS * np.log(policy(scores))).sum()))
    assert masses == sorted(masses, reverse=True)
    assert masses[-1] < masses[0] - 1.0


def test_a_table_with_the_term_gives_more_to_answers_that_nobody_compared(tmp_path: Path) -> None:
    world = trap_world()
    trainer = TabularTrainer(world, ArtifactStore(tmp_path))
    rows = tuple(PairRow(f"r{i}", (i % 4,), (i % 3,), (3,)) for i in range(40))
    objective = Objective("cost", trainer.reference, 0.1 / 0.5, 0.5)
    answers = tuple(((x,), (y,)) for x in range(4) for y in range(4))
    plain, optimistic = (
        trainer.execute(FitCommand(n, Start(trainer.reference), objective, rows, FitSettings(), 0, f"p{n}", term))
        for n, term in ((1, None), (2, LossOptimism(0.1, answers)))
    )
    unseen = [np.exp(trainer.table(result.version))[:, 4:].sum(axis=1) for result in (plain, optimistic)]
    assert (unseen[1] > 1.5 * unseen[0]).all()
    np.testing.assert_allclose(shares_of(answers, world.shape)[:, :4], 1 / 16)


def hashes(run_dir: Path) -> dict[str, str]:
    with read_journal(run_dir / JOURNAL, "run") as journal:
        return {entry.version.name: entry.version.sha256 for entry in journal.versions()}


@pytest.mark.run
def test_a_recipe_puts_the_term_into_the_cost_stage_alone(tmp_path: Path) -> None:
    for name, overrides in (("plain", ()), ("xpo", ("explore.loss=xpo", "explore.alpha=0.1"))):
        run_recipe(small("explore.bonus=off", *overrides, rounds=1), tmp_path / name / "run")
    plain, xpo = hashes(tmp_path / "plain" / "run"), hashes(tmp_path / "xpo" / "run")
    assert plain["reward-1"] == xpo["reward-1"]
    assert plain["policy-1"] != xpo["policy-1"]


@pytest.mark.parametrize("overrides", [["algorithm=pd-dpo"], ["algorithm=o-pd-dpo-paper"]])
def test_the_term_is_refused_where_no_round_collects_with_it(overrides: list[Any]) -> None:
    with pytest.raises(UserError, match=r"explore\.loss=xpo"):
        small("explore.loss=xpo", *overrides)
