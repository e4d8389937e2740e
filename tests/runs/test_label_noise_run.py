"""A run with one label an answer: the covariance that its steps divide by, computed again from what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.parts.limits import ANSWERS
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import ARTIFACTS
from pddpo_ray.theory.estimates.cost_estimate import MOST_NOISE, within_covariance
from tests.support.measured import measured_in

SETTINGS = (
    "report.tensorboard=false", "report.html=false", "beta=1", "rounds=3", "feedback.responses=240",
    "limits={cost: null, unsafe: {rate: {world: cost}, at_most: 40 %, labels_each: 1}}", "offline.compare_rounds=0",
    "dual.rule={kind: newton}", "dual.first=2", "dual.rho=4",
)  # fmt: skip


def world_file(folder: Path) -> Path:
    """Four prompts whose four answers are unsafe with the chances .02, .18, .82 and .98: noise and costs vary alike."""
    shape = (4, 4)
    content = {
        "prior": [0.25] * 4, "reference": np.full(shape, 0.25).tolist(), "baseline": np.full(shape, 0.25).tolist(),
        "reward": [[0.0, 0.5, 0.5, 1.0]] * 4, "cost": [[-4.0, -1.5, 1.5, 4.0]] * 4,
        "beta": 1.0, "reward_max": 2.0, "cost_max": 6.0, "threshold": 5.0,
        "offline": {"covered": np.ones(shape, dtype=bool).tolist(), "pairs": 300}, "measures": {},
    }  # fmt: skip
    path = folder / "world.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.run
def test_a_step_divides_by_the_covariance_with_what_its_policy_had_learned(tmp_path: Path) -> None:
    """Cov(label, beta log reward policy / policy) / lambda within prompts; neither the labels' variance nor its end."""
    config = load("tabular", [f"world={{kind: tabular, path: {world_file(tmp_path)}}}", *SETTINGS])
    run_recipe(config, tmp_path / "run")
    store = ArtifactStore(tmp_path / "run" / ARTIFACTS)
    with open_folder(tmp_path / "run") as journal:
        versions = {(entry.round, entry.stage): entry.version for entry in journal.versions()}
        taken = {entry.round: entry.payload for entry in journal.phases(like="dual")}
        measured = {number: measured_in(journal, number, ANSWERS) for number in (1, 2, 3)}
        asked = {answer.id: answer for answer in journal.samples()}
        multipliers = {step.round: step.multiplier_before for step in journal.dual_steps()}
    for number in (1, 2, 3):
        reward, policy = (
            store.read_tensors(one.path, one.sha256)["log_probs"]
            for one in (versions[number, "reward"], versions[number, "cost"])
        )
        answers = [asked[one] for one in measured[number]["ids"]]
        cells = tuple(np.array([(one.prompt.token_ids[0], one.token_ids[0]) for one in answers]).T)
        labels = np.array(measured[number]["costs"])[:, 0]
        learned = config.beta * (reward - policy)[cells] / multipliers[number]
        draws = np.repeat(np.arange(len(labels) // 2), 2).tolist()
        both = within_covariance(np.column_stack([labels, learned]), draws)
        ((stored,),) = taken[number]["covariance"]
        np.testing.assert_allclose(stored, np.clip(both[0, 1], (1.0 - MOST_NOISE) * both[0, 0], both[0, 0]), rtol=1e-6)
        assert 0.2 * both[0, 0] < stored < 0.95 * both[0, 0]
