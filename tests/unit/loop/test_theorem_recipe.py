"""The recipe `tabular-theorem` is inside all conditions of the theorem for split roles; its runs keep both bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from pddpo_lab.verify.formulas import one_hot_gram, valid_scale
from pddpo_lab.verify.optimism import split_roles, valid
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.config import ProjectedRule, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.exploration.alternatives import elliptical
from pddpo_ray.exploration.explorer import PRIOR_SD
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import ARTIFACTS
from tests.unit.loop.small_run import SMALL


def test_the_recipe_states_all_four_conditions() -> None:
    config, world = load("tabular-theorem"), trap_world()
    prompts, answers = world.shape
    pairs = config.offline.pairs + config.rounds * config.pairs_per_round
    assert config.explore.information == 0.25
    assert config.explore.bonus == "theorem"  # draws from the optimistic policy itself
    assert config.dual.rule == ProjectedRule(curvature_cap=False)
    assert config.dual.skip_below == 0.0
    needed = valid_scale(
        score_max=max(config.reward_max, config.dual.cost_max), prompts=prompts, answers=answers, pairs=pairs,
        s0=PRIOR_SD, weight=0.25, delta=0.05,
    )  # fmt: skip
    assert needed <= config.explore.scale < 1.01 * needed
    assert config.explore.cost_scale == 1.0
    assert config.trainer.refit.rows >= pairs  # type: ignore[union-attr]


@pytest.mark.run
def test_a_run_of_it_keeps_both_inequalities_with_a_valid_bonus(tmp_path: Path) -> None:
    """Fits, pairs, centres and multipliers from the journal; the bonus from the formula, the truth from the world."""
    rounds, world = 3, trap_world()
    small = [one for one in SMALL if "candidates" not in one]
    run_recipe(load("tabular-theorem", [*small, f"rounds={rounds}", "explore.prompts=16"]), tmp_path / "run")
    store = ArtifactStore(tmp_path / "run" / ARTIFACTS)
    with open_folder(tmp_path / "run") as journal:
        versions = {(one.round, one.stage): one for one in journal.versions()}
        pairs = {k: journal.pairs(k) for k in range(rounds + 1)}
        listed = {k: journal.samples(k, "candidate") for k in range(1, rounds + 1)}
        pool = journal.samples(purpose="baseline")
    centre, wins = np.zeros(world.shape), np.zeros((world.shape[0], world.shape[1], world.shape[1]))
    for answer in pool:
        centre[world.cell(answer)] += 1.0
    centre /= centre.sum(axis=1, keepdims=True)
    for k in range(1, rounds + 1):
        for entry in pairs[k - 1]:
            x, first = world.cell(entry.labelled.pair.first)
            wins[x, first, world.cell(entry.labelled.pair.second)[1]] += 1.0
        reward, cost = (versions[k, stage] for stage in ("reward", "cost"))
        multiplier = cost.multiplier
        assert multiplier is not None
        fits = [store.read_tensors(one.version.path, one.version.sha256) for one in (reward, cost)]
        matrix = np.eye(world.shape[1]) / 4.0 + 0.25 * one_hot_gram(wins)
        bonus = elliptical(matrix, np.eye(world.shape[1]) - centre[:, None, :], 223.0)
        for truth, fit in ((world.oracle.reward, fits[0]), (world.oracle.cost, fits[1])):
            assert valid(truth, fit["scores"], bonus, centre).max() <= 0.0
        oracle = world.oracle
        score = oracle.reward - multiplier * oracle.cost
        estimate = fits[0]["scores"] - multiplier * fits[1]["scores"]
        found = split_roles(oracle.prior, oracle.reference, score, estimate, (1.0 + multiplier) * bonus, oracle.beta)
        assert 0.0 < found.share_of_bound <= 1.0
        assert found.share_of_collector <= 1.0
        np.testing.assert_allclose(np.exp(fits[1]["log_probs"]), oracle.tilted(estimate, 0 * estimate, 0.0), atol=1e-9)
        # every answer of each asked prompt was there to be drawn
        assert len(listed[k]) == 16 * world.shape[1]
        assert {world.cell(one)[1] for one in listed[k]} == set(range(world.shape[1]))
        assert len(pairs[k]) <= 16


def test_answers_that_cannot_be_listed_are_refused() -> None:
    with pytest.raises((UserError, ValidationError), match="lists every answer"):
        load("text-world", ["explore.bonus=theorem"])
