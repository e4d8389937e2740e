"""Every uncertainty model and every other choice of exploration by recipe, through the same page and parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import read_journal
from pddpo_ray.records import Pair, Stage
from pddpo_ray.storage.whole_files import JOURNAL
from tests.unit.loop.small_run import small
from tests.unit.methods.runs import commands_of

pytestmark = pytest.mark.run


@pytest.mark.parametrize("kind", ["elliptical", "simhash", "thompson", "greedy", "proposals", "off"])
def test_a_recipe_names_how_answers_are_chosen(kind: str, tmp_path: Path) -> None:
    run_recipe(small(f"explore.bonus={kind}"), tmp_path / "run")
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        bonus = journal.metrics()[2]["explore/mean_bonus_reward"]
        pairs = [entry for entry in journal.pairs() if entry.round == 2]
    assert pairs
    sides = [side for entry in pairs for side in (entry.labelled.pair.first, entry.labelled.pair.second)]
    assert (bonus == 0.0) == (kind in ("greedy", "proposals", "off"))
    if kind in ("proposals", "off"):
        assert any("proposal" in side.id for side in sides) == (kind == "proposals")


def pairs_and_metrics(run_dir: Path, *overrides: str) -> tuple[list[Pair], dict[str, float]]:
    """Pairs and numbers of the second round."""
    run_recipe(small(*overrides), run_dir)
    with read_journal(run_dir / JOURNAL, run_dir.name) as journal:
        return [entry.labelled.pair for entry in journal.pairs(2)], journal.metrics()[2]


def test_max_info_compares_candidates_with_each_other(tmp_path: Path) -> None:
    usual, _ = pairs_and_metrics(tmp_path / "usual")
    informed, _ = pairs_and_metrics(tmp_path / "informed", "explore.comparator=max_info")
    assert all("baseline" in pair.first.id + pair.second.id for pair in usual)
    assert not any("baseline" in pair.first.id + pair.second.id for pair in informed)
    assert all(pair.first.token_ids != pair.second.token_ids for pair in informed)


def test_the_bonus_in_the_loss_makes_another_policy_and_collects_with_it(tmp_path: Path) -> None:
    """`algorithm: o-pd-dpo-paper`: the policy of a round carries the bonus, and its own answers are paired."""
    pairs, metrics = pairs_and_metrics(tmp_path / "run", "algorithm=o-pd-dpo-paper")
    assert metrics["explore/mean_bonus_reward"] == 0.0  # nothing is added at collection time
    written = {side.policy_version for pair in pairs for side in (pair.first, pair.second)}
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        versions = {entry.version.name: entry.version.number for entry in journal.versions()}
    assert written == {0, versions["policy-2"]}


@pytest.mark.parametrize("stage", ["reward", "cost"])
def test_the_margin_of_a_row_is_what_the_rejected_answers_bonus_is_ahead(stage: Stage, tmp_path: Path) -> None:
    """Every fit of a run with the bonus in its loss, from the bonus b = k ||phi_c||_{Lambda^-1} by its definition."""
    config = small("algorithm=o-pd-dpo-paper", rounds=3)
    fits = [one for one in commands_of(config, tmp_path / "run") if one.objective.stage == stage]
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        pairs = {number: [entry.labelled.pair for entry in journal.pairs(number)] for number in range(3)}
        baseline = journal.samples(0, "baseline")
    world = trap_world()
    mean = np.zeros(world.shape)
    np.add.at(mean, tuple(zip(*map(world.cell, baseline), strict=True)), world.shape[0] / len(baseline))
    for round_, fit in enumerate(fits, start=1):
        bonus = brute_force_bonus([pair for number in range(round_) for pair in pairs[number]], mean, k=1.5, s0=2.0)
        expected = [bonus[r.prompt[0], r.rejected[0]] - bonus[r.prompt[0], r.chosen[0]] for r in fit.rows]
        np.testing.assert_allclose(fit.objective.margins, expected, atol=1e-9)
        np.testing.assert_allclose(np.reshape(fit.objective.answer_bonus, world.shape), bonus, atol=1e-9)
        assert np.ptp(fit.objective.margins) > 0.1


def brute_force_bonus(pairs: list[Pair], baseline: np.ndarray, *, k: float, s0: float) -> np.ndarray:
    """Bonus of every answer from (I / s0^2 + 1/4 sum v v^T)^-1 with one-hot features, prompt by prompt. [X, Y]"""
    answers = np.eye(baseline.shape[1])
    bonus = np.zeros_like(baseline)
    for x in range(len(baseline)):
        design = answers / s0**2
        for pair in pairs:
            if pair.prompt.token_ids[0] == x:
                v = answers[pair.first.token_ids[0]] - answers[pair.second.token_ids[0]]
                design += 0.25 * np.outer(v, v)
        for y, centred in enumerate(answers - baseline[x]):
            bonus[x, y] = k * np.sqrt(centred @ np.linalg.solve(design, centred))
    return bonus


def test_the_exposure_of_those_who_label_is_reported(tmp_path: Path) -> None:
    """Mean true cost of what exploring shows, by hand from the pairs."""
    pairs, metrics = pairs_and_metrics(tmp_path / "run")
    world = trap_world()
    shown = [side for pair in pairs for side in (pair.first, pair.second) if "baseline" not in side.id]
    assert metrics["explore/exposure"] == pytest.approx(sum(map(world.cost, shown)) / len(shown))
