"""The study of choices that the theory leaves open: complete, repeatable, and what follows from it is what ships."""

from __future__ import annotations

import numpy as np
import pytest

from lab.studies.study import known
from lab.studies.theory_choices import network
from lab.studies.theory_choices.run import PLAYED, RESULTS, ada_lag, cost_pairs, registered, table, worlds
from pddpo_lab.worlds.tabular.world import random_world
from pddpo_ray.config import load
from pddpo_ray.theory.intervals import student_half_width
from pddpo_ray.theory.seeds import generator

KEYS = [key for key, _, _ in worlds(registered()["worlds"])]


def test_every_registered_world_has_every_arm() -> None:
    results = known(RESULTS)
    for name, study in registered()["studies"].items():
        assert sorted(key for key in results if key.startswith(f"{name}/")) == sorted(f"{name}/{key}" for key in KEYS)
        assert all(set(results[f"{name}/{key}"]) == set(study["arms"]) for key in KEYS)
    assert table(results).count("20 worlds") == len(registered()["studies"])


@pytest.mark.parametrize("arm", ["projected, 5", "projected, 1", "newton, 2"])
def test_a_world_that_is_played_again_gives_the_stored_gap(arm: str) -> None:
    study = registered()["studies"]["beginning"]
    stored = known(RESULTS)["beginning/random/4000"][arm]
    assert PLAYED["beginning"](random_world(4000), arm, 4000, study) == pytest.approx(stored, abs=1e-5)


def test_the_gpu_recipe_begins_as_the_registered_rule_says() -> None:
    """Of the arms whose interval against the present one is below 0, that with the lowest mean."""
    rows = [known(RESULTS)[f"beginning/{key}"] for key in KEYS]
    found = {}
    for arm, other in registered()["studies"]["beginning"]["pairs"]:
        values = np.array([row[arm] - row[other] for row in rows])
        half = student_half_width(float(values.std(ddof=1)) / np.sqrt(len(values)), len(values))
        if values.mean() + half < 0:
            found[arm] = np.mean([row[arm] for row in rows])
    rule, first = min(found, key=lambda arm: found[arm]).split(", ")
    dual = load("gpu/o-pd-dpo-1", check_files=False).dual
    assert (dual.rule.kind, dual.first) == (rule, float(first))


@pytest.mark.run
def test_a_new_optimiser_steps_by_signs_and_a_carried_one_does_not() -> None:
    """After one step both are the same; after two they are not."""
    world = random_world(3999)
    once = [ada_lag(world, carried=carried, rate=0.3, steps=1, seed=0) for carried in (True, False)]
    twice = [ada_lag(world, carried=carried, rate=0.3, steps=2, seed=0) for carried in (True, False)]
    assert once[0] == once[1]
    assert twice[0] != twice[1]


def test_pairs_of_costs_hold_two_answers_and_the_costlier_more_often_last() -> None:
    world = random_world(3999)
    x, cheap, costly = cost_pairs(world.oracle.cost, generator(0, "test"))
    assert (cheap != costly).all()
    assert (world.oracle.cost[x, cheap] < world.oracle.cost[x, costly]).mean() > 0.55


def test_every_world_of_the_network_has_both_arms_and_what_ships_follows_from_them() -> None:
    plan, results = network.registered(), known(network.RESULTS)
    rows = {ends: network.rows_between(results, plan[ends]) for ends in ("tuning", "worlds")}
    assert (len(rows["tuning"]), len(rows["worlds"])) == (2, 10)
    assert all(row["date"] and row["machine"] and row["version"] for found in rows.values() for row in found)
    of = network.chosen(results, plan["rates"]["registered"])
    values = np.array([row[of["carried"]] - row[of["fresh"]] for row in rows["worlds"]])
    half = student_half_width(float(values.std(ddof=1)) / np.sqrt(len(values)), len(values))
    ships = "carried" if values.mean() + half < 0 else "fresh"
    assert load("pd-dpo-adalag").trainer.moments == load("paper/pd-dpo-adalag").trainer.moments == ships


@pytest.mark.run
def test_both_arms_of_the_network_begin_from_one_policy_and_part_at_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = {**network.registered(), "steps": 1, "first": {"steps": 5, "rate": 0.01}}
    monkeypatch.setattr(network, "registered", lambda: short)
    with network.begun(random_world(3999, beta=network.BETA), 3999) as start:
        fresh, again, carried = (network.ada_lag(start, name, 0) for name in ("fresh 0.1", "fresh 0.1", "carried 0.1"))
        before = start.oracle.gap(start.table(start.policy))
    assert fresh == again
    assert len({fresh, carried, before}) == 3
