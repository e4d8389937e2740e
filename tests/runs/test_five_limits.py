"""Five limits of five kinds at once, through a power cut in every phase: one trace, one report, one certificate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table

from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import Config, ScorerJob
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import Journal, schema
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.report.build import build_report
from pddpo_ray.scoring.held_out import REPORT, Trials
from pddpo_ray.scoring.scorer_job import train_from_files
from tests.runs.test_limits_on_text import PowerCut, twin
from tests.support.answering_people import answering
from tests.support.scorer_rows import TEMPLATE, rows_of_words, write_rows
from tests.support.tiny_language_model import save_policy
from tests.unit.loop.small_run import story

pytestmark = [pytest.mark.full, pytest.mark.slow]

NAMES = ["harmful", "length", "rude", "unsafe", "wins"]
EVERY_PHASE = 300
"""More than a run has."""
CANDIDATE_LIMITS = {"harmful": 1.9, "length": 19.0, "rude": 0.99, "unsafe": 0.99, "wins": 0.01}


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cost model on a tiny language model, whose held-out comparisons pass the gate."""
    folder = tmp_path_factory.mktemp("scorer")
    rows = write_rows(folder / "pairs.jsonl", rows_of_words(60, 1))
    base = save_policy(folder / "base", 0)
    job = ScorerJob(kind="cost", files=(str(rows),), base=str(base), template=TEMPLATE, device="cpu")
    report = train_from_files(job, folder / "cost", resume=False, say=lambda line: None)
    report["held_out"] |= Trials(20, 20).as_metrics()
    (folder / "cost" / REPORT).write_text(json.dumps(report))
    return folder / "cost"


def five_limits(scorer: Path, question: Path, *overrides: str) -> Config:
    audit = f"audited_by: {{people: 6 a round, question: {question}}}"
    return twin(
        "limits.harmful={logit: {world: cost}, at_most: 0, labels_each: 4}",
        f"limits.rude={{rate: {{world: cost-2}}, over: outside, at_most: 60 %, labels_each: 1, {audit}}}",
        f"limits.unsafe={{rate: {{score_model: '{scorer}'}}, at_most: 50 %}}",
        "limits.wins={rate: {world: reward}, versus: reference, at_least: 40 %, labels_each: 2}",
        "dual.rho=4", "people={}", "certificate={batch: 8}", "rounds=3", *overrides,
    )  # fmt: skip


def long(question: Lease, person: int) -> bool:
    return len(question.left.split()) > 10


def cut_once_in_a_phase(monkeypatch: pytest.MonkeyPatch, most: int) -> set[tuple[int, str]]:
    """The power goes after the work of a phase, before its commit, once in each of the first `most`.

    Returns the phases that were cut.
    """
    cut: set[tuple[int, str]] = set()
    write = Journal._write

    def write_or_cut(journal: Journal, added: Sequence[tuple[Table, list[dict[str, Any]], bool]]) -> None:
        for table, new, _ in added:
            for row in new if table is schema.phase else ():
                if (row["round"], row["phase"]) not in cut and len(cut) < most:
                    cut.add((row["round"], row["phase"]))
                    raise PowerCut
        write(journal, added)

    monkeypatch.setattr(Journal, "_write", write_or_cut)
    return cut


def finished(config: Config, folder: Path) -> dict[str, Any]:
    """The result of a run that is resumed after every cut, with two people who answer."""
    with ExitStack() as people:
        for attempt in range(EVERY_PHASE):
            try:
                return run_recipe(config, folder, resume=attempt > 0)
            except PowerCut:
                if attempt == 0:
                    people.enter_context(answering(folder, 2, long))
    raise AssertionError("the run does not end")


def test_five_limits_survive_a_cut_in_every_phase_and_are_reported_and_certified(
    scorer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = tmp_path / "long.md"
    question.write_text("# Is it long?\n\nMore than ten words.\n")
    # labels a round late: a cut falls between an answer and its labels too
    config = five_limits(scorer, question, "feedback.rounds_late=1")
    with monkeypatch.context() as power:
        cut = cut_once_in_a_phase(power, EVERY_PHASE)
        broken = finished(config, tmp_path / "cut" / "run")
    with monkeypatch.context() as power:
        # One cut in its first phase, so that the people come to a run that has begun.
        cut_once_in_a_phase(power, 1)
        whole = finished(config, tmp_path / "whole" / "run")
    assert {"fit-reward", "fit-cost", "sample", "measure-answers", "dual"} <= {phase for _, phase in cut}
    assert story(tmp_path / "cut" / "run") == story(tmp_path / "whole" / "run")
    assert broken["limits"] == whole["limits"]
    assert sorted(broken["limits"]) == NAMES
    with open_folder(tmp_path / "cut" / "run") as journal:
        steps = journal.dual_steps()
    assert {step.constraint for step in steps} == set(NAMES)
    page = build_report(tmp_path / "cut" / "run").read_text(encoding="utf-8")
    assert all(name in page for name in NAMES)
    with answering(tmp_path / "cut" / "run", 2, long):
        entry = certify(config, tmp_path / "cut" / "run", "last", CANDIDATE_LIMITS, 16)
    assert sorted(entry.findings) == NAMES
