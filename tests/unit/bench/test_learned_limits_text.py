"""The studies of limits on the text world: vectors are ranked by the truth, values cost no more labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from lab.studies.limits.text import (
    LABELS,
    LEVELS,
    arguments,
    exact_gaps,
    finished,
    labels_of_harm,
    learned_problems,
    of_arm,
)
from pddpo_ray.backends.in_process_text import text_view, world_under_limits
from pddpo_ray.config import load
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import ARTIFACTS
from pddpo_ray.worlds.text.prepared_world import prepare_text_world


def test_settings_may_stand_behind_options() -> None:
    given = arguments(["rates", "network", "--limit", "1", "--seeds", "2", "rounds=8", "beta=0.3"])
    assert (given.study, given.where, given.limit, given.seeds) == ("rates", "network", 1.0, "2")
    assert given.overrides == ["rounds=8", "beta=0.3"]


@pytest.mark.slow
def test_weight_vectors_are_ranked_by_the_gap_of_their_exact_policies() -> None:
    config = load("text-world-limits-twin")
    ranked = exact_gaps(config)
    assert len(ranked) == len(LEVELS) ** 3
    gaps = [gap for _, gap, _ in ranked]
    assert gaps == sorted(gaps)
    truth, _ = world_under_limits(config, prepare_text_world(config))
    oracle = truth.oracle(config.beta)
    vector, gap, excess = ranked[0]
    costs = np.stack([oracle.cost, *(one.cost for one in oracle.further)])
    limits = np.array([oracle.threshold, *(one.threshold for one in oracle.further)])
    with np.errstate(divide="ignore"):
        logits = np.log(oracle.reference) + (oracle.reward - np.tensordot(np.array(vector), costs, 1)) / config.beta
    policy = softmax(logits, axis=1)
    assert excess == pytest.approx(np.einsum("x,xy,ixy->i", oracle.prior, policy, costs) - limits, abs=1e-9)
    assert gap == pytest.approx(oracle.gap(policy), abs=1e-9)


@pytest.mark.full
def test_the_problem_that_a_run_sees_has_its_learned_reward(tmp_path: Path) -> None:
    """The reference times exp(learned reward / beta) is the reward policy again, on the answers that are enumerated."""
    config = load("text-world-limits-twin", ["rounds=1", "report.html=false", "report.tensorboard=false"])
    finished(config, tmp_path / "run")
    (learned,) = learned_problems(config, tmp_path / "run")
    again = learned.lagrangian().policy(np.zeros(3))
    with open_folder(tmp_path / "run") as journal:
        (version,) = [entry.version for entry in journal.versions() if entry.stage == "reward" and entry.round == 1]
    view = text_view(config, prepare_text_world(config), ArtifactStore(tmp_path / "run" / ARTIFACTS))
    inside = np.where(learned.reference > 0, view.table(version), 0.0)
    assert again == pytest.approx(inside / inside.sum(axis=1, keepdims=True), abs=1e-9)
    assert np.abs(learned.reward - view.oracle.reward).max() > 0.1


@pytest.mark.full
@pytest.mark.slow
def test_learning_a_rate_from_values_spends_no_more_labels_in_the_rounds_than_comparisons_do(tmp_path: Path) -> None:
    quiet = ["report.html=false", "report.tensorboard=false", "rounds=2"]
    spent = {}
    for arm in ("values", "comparisons"):
        finished(load("o-pd-dpo", [*of_arm(arm, "twin", 0.05), *quiet]), tmp_path / arm)
        spent[arm] = labels_of_harm(tmp_path / arm, arm)
    assert spent["comparisons"] == (LABELS, 2 * 2 * LABELS)
    # every answer of the pairs that are there before; in the rounds many an answer is in several pairs
    assert spent["values"][0] == 2 * LABELS
    assert 2 * LABELS < spent["values"][1] <= spent["comparisons"][1]
