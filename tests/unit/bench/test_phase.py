"""The study of exploration: its statistics against enumeration, its arms on equal terms, and a broken study goes on."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.studies.exploration import run as phase
from lab.studies.exploration.played import ARMS, ROUNDS, Cell, played
from lab.studies.exploration.run import (
    PRIMARY,
    adjusted_p,
    best_of,
    cell_of,
    differences,
    holm,
    permutation_p,
    registered,
    registered_worlds,
)
from lab.studies.exploration.worlds import table_ground, twin_ground
from lab.studies.study import seeds_between
from pddpo_lab.worlds.tabular.world import full_coverage, rare_world
from pddpo_ray.worlds.text.family import HELD_OUT_SEEDS

SMALL = Cell(rare=0.02, beta=0.2, picks=2, candidates=8)


def test_the_permutation_test_agrees_with_all_sign_flips() -> None:
    values = np.random.default_rng(3).normal(0.3, 0.5, 10)
    flips = [abs(np.dot(signs, values)) for signs in itertools.product((-1, 1), repeat=len(values))]
    exact = np.mean([flip >= abs(values.sum()) - 1e-12 for flip in flips])
    assert permutation_p(values) == pytest.approx(exact, abs=0.005)
    assert permutation_p(-values) == permutation_p(values)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


@pytest.mark.slow
def test_all_arms_of_a_world_begin_alike_and_spend_the_same_labels() -> None:
    ground = table_ground(5, SMALL.rare, SMALL.beta)
    runs = {name: played(ground, SMALL, arm, 5) for name, arm in ARMS.items()}
    assert {run.gaps[0] for run in runs.values()} == {runs["off"].gaps[0]}
    safety, compared = ROUNDS * 288 * 32, 2 * (400 + ROUNDS * 24 * 2)
    for run in runs.values():  # a pick whose comparators are all the same text makes no pair
        assert 0.98 * compared <= run.labels - safety <= compared
    assert len({tuple(run.gaps) for run in runs.values()}) == len(runs)
    again = played(ground, SMALL, ARMS["shipped"], 5)
    assert (again.gaps, again.violation) == (runs["shipped"].gaps, runs["shipped"].violation)


def test_without_anything_rare_to_find_a_run_comes_close_to_the_optimum_by_itself() -> None:
    """The loop itself: offline pairs over all answers, so that nothing has to be explored."""
    world = full_coverage(rare_world(2, beta=0.2, frequency=0.1), 4000)
    ground = table_ground(2, 0.1, 0.2)
    wide = type(ground)(ground.oracle, world.oracle.reference, ground.features, ground.learner, 4000, ground.tokens)
    assert ground.oracle.reward.tolist() == world.oracle.reward.tolist()
    assert played(wide, SMALL, ARMS["off"], 2).gaps[-1] < 0.1 * ground.oracle.gap(ground.oracle.reference)


def test_the_twins_baseline_writes_no_rare_phrase_and_its_reference_does() -> None:
    ground = twin_ground(4, 0.003, 0.2)
    assert ground.oracle.reference.min() > 0.0
    assert ground.oracle.reference.sum(axis=1) == pytest.approx(np.ones(24))
    rare = ground.baseline.max(axis=0) == 0.0
    assert 0.0 < ground.oracle.reference[:, rare].sum(axis=1).max() < 0.5
    unfound = np.where(rare, 0.0, ground.oracle.optimum.policy)
    assert unfound.sum() < 0.9 * len(unfound)
    assert ground.oracle.g(ground.oracle.optimum.policy) == pytest.approx(0.0, abs=1e-6)


def test_held_out_worlds_are_apart_from_those_that_choose() -> None:
    held_out = {seed for _, _, seed in registered_worlds()}
    tuning = {seed for ends in registered()["seeds"]["tuning"].values() for seed in seeds_between(ends)}
    assert held_out <= set(HELD_OUT_SEEDS)
    assert not held_out & tuning
    assert len(held_out) == registered()["worlds_per_cell"]
    assert {cell_of(name).candidates for name in registered()["cells"]} == {32, 128}


@pytest.mark.slow
def test_a_finished_world_is_not_played_again_and_a_missing_arm_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phase, "cell_of", lambda name: SMALL)
    out = tmp_path / "phase.json"
    phase.play(out, "tables", "deep", 1000, {"off": ARMS["off"]})
    first = out.read_text()
    monkeypatch.setattr(phase, "played", None)
    phase.play(out, "tables", "deep", 1000, {"off": ARMS["off"]})
    assert out.read_text() == first
    monkeypatch.setattr(phase, "played", played)
    phase.play(out, "tables", "deep", 1000, {"off": ARMS["off"], "proposals": ARMS["proposals"]})
    known = json.loads(out.read_text())["tables/deep/1000"]
    assert set(known) == {"off", "proposals"}
    assert known["off"] == json.loads(first)["tables/deep/1000"]["off"]


def test_tables_are_made_from_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"violation": 0.0, "multiplier": 0.3, "optimum": 0.3, "labels": 10, "tokens": 20, "seconds": 1.0}
    gaps = {"off": (0.9, 0.8, 1.0), "proposals": (0.5, 0.6, 0.7), "shipped": (0.4, 0.3, 0.2)}
    found = {
        f"twin/wide/{1000 + world}": {
            arm: {"gaps": [2.0] * 11 + [values[world]], **run} for arm, values in gaps.items()
        }
        for world in range(3)
    }
    assert differences(found, "twin", "wide", ("proposals", "shipped")) == pytest.approx([0.1, 0.3, 0.5])
    out = tmp_path / "phase.json"
    out.write_text(json.dumps(found))
    monkeypatch.setattr(sys, "argv", ["phase", "table", "--out", str(out)])
    phase.main()
    said = capsys.readouterr().out
    assert "| twin | wide | 3 | 0.900 | 0.600 | 0.300 |" in said
    # mean 0.3, standard deviation 0.2, Student's 0.975 quantile with two degrees of freedom 4.303
    assert "+0.300 (-0.197 to +0.797)" in said
    assert "| twin | wide | 3 | +0.000 (+0.000 to +0.000) | +0.000 (+0.000 to +0.000) | +0.300 (" in said
    assert "| twin | wide | shipped | 10 | 20 | 1.0 |" in said
    # of the eight sign patterns of three differences two are as extreme; Holm counts all eight registered cells
    assert "| 0.2478, Holm 1.0000 | 1.0000, Holm 1.0000 |" in said


def test_the_best_alternative_is_the_one_with_the_smallest_gap_on_the_tuning_worlds() -> None:
    level = {"shipped": 0.1, "thompson": 0.5, "simhash": 0.4, "max_info": 0.3, "greedy": 0.35}
    found = {
        f"{place}/{cell}/{seed}": {arm: {"gaps": [gap]} for arm, gap in level.items()}
        for place, ends in registered()["seeds"]["tuning"].items()
        for seed in seeds_between(ends)
        for cell in ("deep", "wide")
    }
    assert best_of(found) == "max_info"


def test_a_corner_on_the_network_is_the_demos_recipe_at_the_cells_setting() -> None:
    wanted = registered()["network"]
    assert not set(seeds_between(wanted["seeds"])) & {seed for _, _, seed in registered_worlds()}
    made = [phase.network_config(cell, 1020, arm) for cell in wanted["cells"] for arm in wanted["arms"]]
    chosen = [(one.explore.bonus, one.explore.picks, one.rollout.candidates, one.beta) for one in made]
    assert chosen[:3] == [("off", 24, 32, 0.2), ("proposals", 24, 32, 0.2), ("elliptical", 24, 32, 0.2)]
    assert chosen[5] == ("elliptical", 2, 128, 0.1)
    assert {one.algorithm for one in made} == {"o-pd-dpo"}
    assert {one.policies for one in made} == {"language models"}


def test_the_networks_worlds_do_not_count_among_the_registered_comparisons() -> None:
    """Holm over eight cells, of which one is played: eight times its p, with the network's rows or without."""

    def row(apart: float) -> dict[str, Any]:
        return {"proposals": {"gaps": [0.5 + apart]}, "shipped": {"gaps": [0.5]}}

    tables = {f"tables/deep/{seed}": row(0.1 + 0.01 * (seed % 3)) for seed in range(1000, 1012)}
    network = {f"network/deep/{seed}": row(0.2) for seed in range(1020, 1026)}
    shown = [("tables", "deep"), ("network", "deep")]
    alone = adjusted_p(tables, PRIMARY, shown[:1])
    together = adjusted_p(tables | network, PRIMARY, shown)
    assert together[0] == alone[0]
    assert "Holm" in alone[0]
    assert "Holm" not in together[1]
