"""What a run hands over: the same outcome on the terminal, in result.json and in the journal."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from pddpo_ray.cli.train import show_result
from pddpo_ray.journal import read_journal
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from pddpo_ray.loop.outcome import Outcome, outcome_of
from pddpo_ray.loop.run import run_recipe
from pddpo_ray.report.progress import watching
from pddpo_ray.report.text import seconds
from pddpo_ray.serving.releases import Releases
from pddpo_ray.storage.whole_files import JOURNAL, RESULT
from tests.unit.loop.small_run import run_of, small

KEPT = ("dual.threshold=1.9",)
BROKEN = ("dual.threshold=-0.55", "feedback.responses=64", "feedback.labels_each=16")
"""A limit that every estimate keeps, and one close to the least cost there is, which two rounds do not reach."""


def test_a_released_policy_is_named_with_its_estimate_and_its_weights_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run_dir = small(*KEPT, rounds=1), tmp_path / "run"
    result = run_recipe(config, run_dir)
    with read_journal(run_dir / JOURNAL, "run") as journal:
        outcome = outcome_of(journal, config.typed_limits, run_dir, policies="tables")
        (step,), policy = journal.dual_steps(), journal.policies[-1]
    assert Outcome.from_json(json.loads((run_dir / RESULT).read_text())["outcome"]) == outcome
    assert (outcome.round, outcome.policy, outcome.by, outcome.asked) == (1, "policy-1", "rule", 1)
    (limit,) = outcome.limits
    assert (limit.limit, limit.estimate, limit.standard_error) == (
        1.9,
        step.estimate.value,
        step.estimate.standard_error,
    )
    show_result(config, result, run_dir, None)
    out = capsys.readouterr().out
    assert out.startswith("Released: policy-1, the policy of round 1, by the release rule.\n  cost: estimated ")
    assert "was asked once. An estimate is no certificate" in out
    assert re.search(r"unsafe rate \d", out)
    assert "95 %" not in out
    (path,) = re.findall(r'load_file\("(.*)"\)', out)
    stored = load_file(path)
    assert stored
    assert all(np.isfinite(tensor).all() for tensor in stored.values())
    assert policy.path in path


def test_a_run_without_a_release_says_why_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small(*BROKEN)
    result = run_recipe(config, tmp_path / "run")
    outcome = Outcome.from_json(result["outcome"])
    assert (outcome.round, outcome.policy, outcome.weights, outcome.load(), outcome.serve()) == (None,) * 5
    assert outcome.asked == 2
    show_result(config, result, tmp_path / "run", None)
    out = capsys.readouterr().out
    assert re.match(
        r"No policy is released: estimated cost, 1.64 standard errors to the worse, is \S+ logit, "
        r"beyond the limit -0.55 logit\.",
        out,
    )
    assert "more rounds (a new run with rounds=4)" in out


def test_a_release_by_hand_leads_with_the_persons_name(tmp_path: Path) -> None:
    config, run_dir = small(*BROKEN), tmp_path / "run"
    run_recipe(config, run_dir)
    engine = open_database(run_dir / JOURNAL)
    Releases(Store(engine, run_of(run_dir))).release(1, by="ana", reason="a trial", force=True)
    engine.dispose()
    with read_journal(run_dir / JOURNAL, "run") as journal:
        outcome = outcome_of(journal, config.typed_limits, run_dir, policies="tables")
    assert outcome.headline == "Released: policy-1, the policy of round 1, by ana (a trial)."


def test_terminal_result_and_report_say_the_same_seconds(tmp_path: Path) -> None:
    config, out = small("offline.compare_rounds=1", rounds=1), io.StringIO()
    with watching(tmp_path / "run", tensorboard=False, console=Console(file=out)) as progress:
        result = run_recipe(config, tmp_path / "run", progress=progress)
    assert f"run: finished in {seconds(result['seconds'])}" in out.getvalue()
    assert json.loads((tmp_path / "run" / RESULT).read_text())["seconds"] == result["seconds"]
    assert result["seconds"] >= result["seconds_by_phase"]["comparison"] + result["seconds_by_phase"]["start"]
