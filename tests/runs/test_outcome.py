"""What a run hands over: the same outcome on the terminal, in result.json and in the journal."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from pddpo_ray.certificates.document import FILE, sentences, verified
from pddpo_ray.certificates.ledger import read_ledger
from pddpo_ray.certificates.outcome import Outcome, outcome_of
from pddpo_ray.certificates.release import why_not_asked
from pddpo_ray.certificates.release_history import Releases
from pddpo_ray.cli.runs.train import show_result
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import read_journal
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.transactions import Store
from pddpo_ray.report.build import render
from pddpo_ray.report.progress import watching
from pddpo_ray.report.run_data import read_run
from pddpo_ray.report.text import seconds
from pddpo_ray.storage.whole_files import JOURNAL, RESULT
from tests.support.finished_runs import FinishedRuns
from tests.unit.loop.small_run import run_of, small

pytestmark = pytest.mark.run

KEPT = ("limits.cost.at_most=1.9", "certificate.certify=end", "certificate.draws=128")
BROKEN = ("limits.cost.at_most=-0.55", "feedback.responses=64", "limits.cost.labels_each=16", "certificate.certify=end")
"""A limit that every policy keeps, and one close to the least cost there is, which two rounds do not reach."""


def test_the_run_releases_the_best_certified_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, run_dir = small(*KEPT, rounds=1), tmp_path / "run"
    result = run_recipe(config, run_dir)
    with read_journal(run_dir / JOURNAL, "run") as journal:
        outcome = outcome_of(journal, config.typed_limits, run_dir, policies="tables")
        (step,), policy = journal.dual_steps(), journal.policies[-1]
    assert Outcome.from_json(json.loads((run_dir / RESULT).read_text())["outcome"]) == outcome
    assert (outcome.round, outcome.policy, outcome.by, outcome.tested) == (1, "policy-1", "rule", 1)
    (limit,) = outcome.limits
    assert (limit.limit, limit.estimate, limit.standard_error) == (
        1.9,
        step.estimate.value,
        step.estimate.standard_error,
    )
    said = sentences(verified(run_dir / FILE))
    assert list(outcome.certificate) == said
    show_result(config, result, run_dir, None)
    out = capsys.readouterr().out
    assert out.startswith(f"Released: policy-1, the policy of round 1. {said[0]}\n  {said[1]}\n")
    assert re.search(r"unsafe rate \d", out)
    (path,) = re.findall(r'load_file\("(.*)"\)', out)
    stored = load_file(path)
    assert stored
    assert all(np.isfinite(tensor).all() for tensor in stored.values())
    assert policy.path in path


def test_the_report_says_what_is_certified_once_also_in_the_words_of_an_earlier_version(
    finished_runs: FinishedRuns,
) -> None:
    config = small(*KEPT)
    finished_runs.result(config)
    run = read_run(finished_runs.folder(config))
    assert run.outcome.certificate
    older = replace(run, outcome=replace(run.outcome, certificate=("Certified: as it was said before.",)))
    pages = [render(one).partition("<h2>result.json</h2>")[0] for one in (run, older)]
    assert [page.count("Certified: ") for page in pages] == [1, 1]


def test_a_run_without_a_certificate_says_so_and_what_may_still_be_served(
    finished_runs: FinishedRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small(*BROKEN)
    result = finished_runs.result(config)
    outcome = Outcome.from_json(result["outcome"])
    assert (outcome.round, outcome.policy, outcome.weights, outcome.load(), outcome.serve()) == (None,) * 5
    assert (outcome.certificate, outcome.tested) == ((), 0)
    show_result(config, result, finished_runs.folder(config), None)
    out = capsys.readouterr().out
    assert out.startswith("No policy is certified, and none is released: by its own labels no round keeps every limit")
    assert f"next        `pddpo certify {finished_runs.folder(config)}` tests the last policy on fresh answers" in out
    assert "2 --force` releases the last policy, marked as uncertified" in out
    assert "% confidence" not in out


def test_why_a_run_tested_nothing_is_said(tmp_path: Path) -> None:
    result = run_recipe(small(*KEPT, "certificate.certify=never", rounds=1), tmp_path / "run")
    assert "this recipe tests no policy by itself, `pddpo certify RUN` does" in result["outcome"]["headline"]
    for recipe, overrides, reason in (
        ("tabular", ["feedback.kind=people"], "this recipe tests no policy by itself"),
        (
            "text-world",
            [
                "feedback={kind: model}",
                "limits.cost={mean: {model: cost}, learned_from: comparisons}",
                "certificate.certify=end",
            ],
            "never certified",
        ),
    ):
        assert reason in (why_not_asked(load(recipe, overrides)) or "")
    for recipe in ("tabular", "text-world"):  # in one process, and on Ray
        assert why_not_asked(load(recipe, ["certificate.certify=end"])) is None


def test_a_release_by_hand_leads_with_the_persons_name_and_is_marked_as_uncertified(
    finished_runs: FinishedRuns, tmp_path: Path
) -> None:
    config = small(*BROKEN)
    run_dir = finished_runs.copy(config, tmp_path / "run")
    engine = open_database(run_dir / JOURNAL)
    Releases(Store(engine, run_of(run_dir))).release(1, by="ana", reason="a trial", force=True)
    engine.dispose()
    with read_journal(run_dir / JOURNAL, "run") as journal:
        outcome = outcome_of(journal, config.typed_limits, run_dir, policies="tables")
    assert outcome.headline == "Released: policy-1, the policy of round 1, by ana (a trial). It is not certified."


def test_a_run_that_is_resumed_tests_nothing_twice_and_a_release_by_hand_stays(tmp_path: Path) -> None:
    config, run_dir = small(*KEPT), tmp_path / "run"
    first = run_recipe(config, run_dir)
    with open_folder(run_dir) as journal:
        before = read_ledger(journal)
    engine = open_database(run_dir / JOURNAL)
    other = 3 - first["outcome"]["round"]
    Releases(Store(engine, run_of(run_dir))).release(other, by="ana", force=True)
    engine.dispose()
    again = run_recipe(config, run_dir, resume=True)
    assert again["outcome"]["round"] == other
    with open_folder(run_dir) as journal:
        assert read_ledger(journal) == before
        assert [(entry.candidate.number, entry.state) for entry in before] == [(1, "certified")]


def test_terminal_result_and_report_say_the_same_seconds(tmp_path: Path) -> None:
    config, out = small("offline.compare_rounds=1", rounds=1), io.StringIO()
    with watching(tmp_path / "run", tensorboard=False, console=Console(file=out)) as progress:
        result = run_recipe(config, tmp_path / "run", progress=progress)
    assert f"run: finished in {seconds(result['seconds'])}" in out.getvalue()
    assert json.loads((tmp_path / "run" / RESULT).read_text())["seconds"] == result["seconds"]
    assert result["seconds"] >= result["seconds_by_phase"]["comparison"] + result["seconds_by_phase"]["start"]
