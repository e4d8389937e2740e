"""Compared methods after an equal search: light parts against independent answers, equal labels, tables by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax

from lab.studies.comparison import run as fair
from lab.studies.comparison.ground import BETA, REFERENCE, Ground, fair_ground
from lab.studies.comparison.parts import PRIOR_SD, Draws, Known, Rounds, Scores, Solved, Truth, with_models
from lab.studies.comparison.run import ARMS, OURS, best_trial, gap_of, learned, pairs_before, registered, table
from lab.studies.exploration.run import registered as phase_registered
from lab.studies.study import seeds_between
from pddpo_ray.algorithms.stages import lagrangian_objective, reward_objective
from pddpo_ray.records import Prompt
from pddpo_ray.worlds.text.family import HELD_OUT_SEEDS

LEARNING, DRAWS = 1_500, 300


@pytest.fixture(scope="module")
def ground() -> Ground:
    return fair_ground(60)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study with a tenth of its labels."""
    labels = {"labels": {"learning": LEARNING, "draws": DRAWS}}
    found: Mapping[str, Any] = {**registered(), **labels}
    monkeypatch.setattr(fair, "registered", lambda: found)
    monkeypatch.setattr(fair, "OFFLINE", 100)
    thin = {
        name: replace(arm, rounds=min(arm.rounds, 3), responses=min(arm.responses, 64), picks=1)
        for name, arm in ARMS.items()
    }
    monkeypatch.setattr(fair, "ARMS", thin)


def test_tuning_and_held_out_worlds_are_apart_and_all_methods_have_as_many_trials() -> None:
    tuning, held_out = (set(seeds_between(registered()["seeds"][name])) for name in ("tuning", "held_out"))
    exploration = phase_registered()
    used = {*seeds_between(exploration["seeds"]["held_out"]), *seeds_between(exploration["network"]["seeds"])}
    assert held_out <= set(HELD_OUT_SEEDS)
    assert not held_out & (tuning | used)
    assert len(held_out) == 12
    assert {len(trials) for trials in registered()["trials"].values()} == {6}
    assert set(ARMS) - set(registered()["trials"]) == {OURS, "o-pd-dpo-off"}


def test_the_limit_binds_in_every_world_and_the_optimum_is_at_it(ground: Ground) -> None:
    oracle = ground.oracle
    assert oracle.g(oracle.policy(0.0)) > 0.0
    assert oracle.g(oracle.optimum.policy) == pytest.approx(0.0, abs=1e-9)
    assert oracle.gap(oracle.optimum.policy) == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < oracle.cost.min() < oracle.cost.max() < 1.0
    np.testing.assert_allclose(oracle.reference, np.exp(ground.policies.log_reference), rtol=1e-12)


@pytest.mark.slow
def test_both_stages_equal_a_minimiser_of_the_printed_losses(ground: Ground) -> None:
    """scipy over theta of the mean DPO losses with the prior, one stage after the other."""
    known, truth = Known(), Truth(ground.oracle, 3, fair.BOTH)
    trainer = Solved(ground.policies)
    draws = Draws(trainer, Rounds(), 3, 4)
    known.extend(truth.compare(draws.pairs(60, ground.oracle.reference)))
    helpful = trainer.fit(reward_objective(REFERENCE, BETA), known.reward)
    policy = trainer.fit(lagrangian_objective(helpful, 0.7, BETA), known.cost)

    def fitted(rows: list[Any]) -> Any:
        prompts, chosen, rejected = np.array([(*row.prompt, *row.chosen, *row.rejected) for row in rows]).T
        apart = ground.policies.features(prompts, chosen) - ground.policies.features(prompts, rejected)

        def loss(theta: Any) -> tuple[float, Any]:
            logits = apart @ theta
            pull = apart.T @ (1.0 / (1.0 + np.exp(logits)))
            return float(
                np.logaddexp(0.0, -logits).sum() + 0.5 * theta @ theta / PRIOR_SD**2
            ), theta / PRIOR_SD**2 - pull

        found = minimize(loss, np.zeros(apart.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9})
        return ground.policies.scores(found.x)

    reward, cheapness = fitted(known.reward), fitted(known.cost)
    expected = softmax(ground.policies.log_reference + (reward + 0.7 * cheapness) / BETA, axis=1)
    np.testing.assert_allclose(np.exp(trainer.tables[policy.number]), expected, atol=1e-5)


def test_two_policies_cost_has_its_zero_where_labels_of_the_reference_put_it(ground: Ground) -> None:
    trainer = Solved(ground.policies)
    draws = Draws(trainer, Rounds(), 3, 4)
    scores = Scores(ground, trainer, draws, Rounds(), aim=0.05, upper=2.0, answers=8, ladder=1.0, seed=3)
    tilted = trainer.tilted(REFERENCE, -ground.oracle.cost)
    answers = scores.reference_answers(REFERENCE)
    anchored = scores.anchored(scores.policies(REFERENCE, REFERENCE, tilted), answers, 0.12)
    assert anchored(answers)[1].mean() == pytest.approx(0.12, abs=1e-9)
    assert np.ptp(anchored(answers)[0]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARMS)
@pytest.mark.usefixtures("small")
def test_a_method_stays_within_the_labels_and_offers_policies(name: str, ground: Ground) -> None:
    arm = fair.ARMS[name]
    trials = registered()["trials"].get(name, [{}])
    made = learned(ground, arm, trials[-1], 4)
    assert (0.0 if arm.online else 0.75 * LEARNING) < made.labels <= LEARNING
    assert 1 <= len(made.tables) <= 3
    for policy in made.tables:
        np.testing.assert_allclose(policy.sum(axis=1), 1.0, atol=1e-9)
    again = learned(ground, arm, trials[-1], 4)
    assert all(np.array_equal(one, other) for one, other in zip(made.tables, again.tables, strict=True))


@pytest.mark.slow
def test_models_label_what_they_learned_and_the_truth_measures(ground: Ground) -> None:
    """With more pairs their scores are nearer to the truth's, weighed by the reference; the gap stays the truth's."""

    def far(pairs: int) -> float:
        made = with_models(ground, 5, pairs)
        assert made.oracle is ground.oracle
        apart = made.labeller.reward - ground.oracle.reward
        weights = ground.oracle.reference
        apart = apart - np.sum(weights * apart, axis=1, keepdims=True)
        return float(np.sum(weights * apart**2))

    assert far(3000) < 0.5 * far(100)
    made = with_models(ground, 5, 300)
    trainer = Solved(ground.policies)
    answers = Draws(trainer, Rounds(), 3, 4).sample([Prompt("p0", (0,), "")] * 4000, REFERENCE)
    share = Truth(made.labeller, 3, fair.BOTH).unsafe(answers).mean()
    wanted = float(made.labeller.reference[0] @ made.labeller.cost[0])
    assert share == pytest.approx(wanted, abs=4 * np.sqrt(wanted * (1 - wanted) / 4000))


def test_what_is_left_of_the_labels_becomes_pairs() -> None:
    """14,400 labels: two of each pair of SACPO, four of MoCAN's, one of DPO-Helpful's; PD-DPO's rounds take 2,048."""
    found = {name: pairs_before(ARMS[name]) for name in ("sacpo", "mocan", "dpo-helpful", "pd-dpo", "pecan")}
    assert found == {"sacpo": 7200, "mocan": 3600, "dpo-helpful": 14400, "pd-dpo": 4117, "pecan": 6900}


def ended(gap: float | None, reference: float = 2.0) -> dict[str, Any]:
    return {"gap": gap, "rate": None if gap is None else 0.04, "gap_reference": reference, "labels": 10, "draws": 5}


def test_without_a_certified_policy_the_reference_is_what_is_left() -> None:
    assert (gap_of(ended(0.25)), gap_of(ended(None))) == (0.25, 2.0)


def tuned(best: int) -> dict[str, Any]:
    """Trials of SACPO of which one is best."""
    seeds = [str(seed) for seed in seeds_between(registered()["seeds"]["tuning"])]
    return {
        f"trial/sacpo/{number}": {seed: ended(0.2 if number == best else None) for seed in seeds} for number in range(6)
    }


def test_the_trial_with_the_smallest_mean_gap_is_the_methods() -> None:
    assert best_trial(tuned(4), "sacpo") == 4


def test_the_table_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Differences .1, .3 and .5 and one of a run that released nothing: mean .3, t quantile 4.303, deviation .2."""
    own = {0: 0.3, 1: 0.5, 2: 0.7}
    found = tuned(2) | {f"held-out/{1030 + n}": {"sacpo": ended(gap), OURS: ended(0.2)} for n, gap in own.items()}
    out = tmp_path / "fair.json"
    out.write_text(json.dumps(found))
    monkeypatch.setattr(sys, "argv", ["fair", "table", "--out", str(out)])
    fair.main()
    said = capsys.readouterr().out
    first, second = (line for line in said.splitlines() if line.startswith("| O-PD-DPO |") or "| SACPO | mult" in line)
    assert first.startswith("| O-PD-DPO | defaults | 3 | 3 | 0.200 |")
    assert "multiplier 0.2 | 3 | 3 | 0.500 | +0.300 (-0.197 to +0.797)" in second
    # two of the eight patterns of signs are as extreme
    assert float(second.split(" | ")[6]) == pytest.approx(0.25, abs=0.01)
    assert second.split(" | ")[7:9] == ["3 of 3", "3: +0.300 (-0.197 to +0.797)"]
    assert "0.200 (2)" in said
    found["held-out/1033"] = {OURS: ended(9.0)}  # not finished, and so left out
    found["held-out/1030"]["sacpo"] = ended(None)
    assert "| 3 | 2 | 1.067 |" in table(found)


def test_a_finished_run_is_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []

    def played(ground: object, name: str, setting: object, seed: int) -> dict[str, Any]:
        made.append((name, seed))
        return ended(0.1)

    monkeypatch.setattr(fair, "played", played)
    monkeypatch.setattr(fair, "ground_of", lambda where, seed: None)
    monkeypatch.setattr(fair, "fair_ground", lambda seed: None)
    out = tmp_path / "fair.json"
    fair.search(out, ["sacpo"])
    assert len(made) == 6 * len(seeds_between(registered()["seeds"]["tuning"]))
    fair.search(out, ["sacpo"])
    fair.run(out, ["sacpo", OURS])
    fair.run(out, ["sacpo", OURS])
    assert made[12:] == [(name, seed) for seed in range(1030, 1042) for name in ("sacpo", OURS)]
    fair.run(out, [OURS], fair.MODELS)
    assert made[36:] == [(OURS, seed) for seed in range(1030, 1042)]
