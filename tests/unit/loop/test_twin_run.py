"""Runs of the log-linear twin: the ordinary loop, report and commands, with weights of features for a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.storage.whole_files import WEIGHTS
from tests.unit.loop.small_run import story
from tools.small_runs import WORLD

SMALL = (
    "rounds=6",
    "feedback.responses=96",
    "limits.cost.labels_each=16",
    "offline.pairs=600",
    "offline.compare_rounds=3",
    "explore.picks=12",
    "rollout.candidates=32",
    "explore.calibration=960",
)
TINY = (
    *WORLD,
    "feedback.responses=24",
    "limits.cost.labels_each=4",
    "offline.pairs=96",
    "offline.compare_rounds=0",
    "explore.calibration=96",
    "explore.prompts=8",
    "explore.picks=2",
    "rollout.candidates=4",
)
RATE_FAMILY = "world.family={kind: drawn, limit: {kind: rate, at_most: 0.6}}"
FIXED = ("dual.rule={kind: fixed}", "rounds=1", "dual.first=0.7")


def twin(*overrides: str) -> Config:
    return load("text-world-twin", overrides)


@pytest.mark.full
@pytest.mark.slow
def test_six_rounds_close_more_of_the_gap_than_the_offline_pairs_and_every_command_reads_the_run(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", "text-world-twin", *SMALL, "--run", str(run), "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads((run / "result.json").read_text())
    assert result["gap_last"] < 0.7 * result["gap_offline"]
    assert result["off_support_last"] == 0.0
    assert result["weights_verified"] is True
    page = (run / "report.html").read_text()
    assert "log-linear policies" in page
    with open_folder(run) as journal:
        policy, reference = journal.policies[-1], journal.versions()[0].version
    theta = load_file(run / "artifacts" / policy.path / WEIGHTS)
    assert list(theta) == ["theta"]
    assert np.linalg.norm(theta["theta"]) > 0
    assert set(load_file(run / "artifacts" / reference.path / WEIGHTS)) == {"theta", "log_reference"}
    evaluated = CliRunner().invoke(app, ["evaluate", str(run), "--json"])
    assert evaluated.exit_code == 0, evaluated.output
    values = json.loads(evaluated.stdout)["values"]
    for key in ("f", "g", "gap"):
        assert values["policy-6"][key] == pytest.approx(result[f"{key}_last"], abs=1e-12)
        assert values["mixture"][key] == pytest.approx(result[f"{key}_mixture"], abs=1e-12)
    for words in (["chat", str(run)], ["export", str(run), "--to", str(tmp_path / "model")]):
        refused = CliRunner().invoke(app, words)
        assert "are log-linear, not language models" in str(refused.exception)


class PowerCut(BaseException):
    pass


@pytest.mark.run
def test_a_twin_broken_off_in_mid_round_equals_the_unbroken_one(tmp_path: Path) -> None:
    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (2, "safety"):
            raise PowerCut

    config = twin("rounds=3", *TINY)
    with pytest.raises(PowerCut):
        run_recipe(config, tmp_path / "cut" / "run", progress=cut)
    resumed = run_recipe(config, tmp_path / "cut" / "run", resume=True)
    whole = run_recipe(config, tmp_path / "whole" / "run")
    assert story(tmp_path / "cut" / "run") == story(tmp_path / "whole" / "run")
    assert resumed["gap_last"] == whole["gap_last"]


@pytest.mark.run
@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("o-pd-dpo-paper", ("rounds=2",)),
        ("pd-dpo", ("rounds=2",)),
        ("pd-dpo-adalag", ("dual.rule={kind: log}", "rounds=2", "dual.first=1.0", "method.window=40")),
        ("safe-dpo", FIXED),
        ("p-sacpo", FIXED),
        ("mocan", FIXED),
        ("pecan", FIXED),
        ("c-dpo", ("dual.rule={kind: anytime}", "rounds=2")),
        ("caid", ("dual.rule={kind: fixed}", "rounds=2", "dual.first=0.7")),
    ],
)
def test_other_methods_run_on_the_twin(method: str, overrides: tuple[str, ...], tmp_path: Path) -> None:
    result = run_recipe(twin(f"algorithm={method}", *TINY, *overrides), tmp_path / "run")
    assert 0.0 < result["gap_last"] < result["gap_reference"]
    assert result["off_support_last"] == 0.0


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (("rollout={engine: vllm}",), "world.learner loglinear needs rollout.engine tabular, not vllm"),
        (("cluster.mode=ray",), "world.learner=loglinear runs in one process: set cluster={mode: in-process}"),
        (("algorithm=safe-rlhf",), "algorithm safe-rlhf updates a network by policy gradients"),
        (("explore.loss=xpo",), "explore.loss=xpo is a term in a network's loss"),
        (("feedback.kind=model",), "feedback.kind=model scores with networks"),
        (("feedback={kind: mixed, model: scorers}",), "feedback.kind=mixed scores with networks"),
    ],
)
def test_what_needs_a_network_is_refused_by_name(overrides: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        twin(*overrides)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.run
def test_answers_that_would_be_cut_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rollout\.max_tokens=8 cuts answers"):
        run_recipe(twin("rollout.max_tokens=8"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_network_has_the_digest_that_it_had_before_there_was_a_twin() -> None:
    world = load("text-world").fixed_settings()["world"]
    assert not {"learner", "loglinear"} & set(world)
    assert {"learner", "loglinear"} <= set(twin().fixed_settings()["world"])
    assert twin().digest() != twin("world.loglinear.topics=0.3").digest()
