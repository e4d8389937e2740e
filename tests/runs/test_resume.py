"""Break a run anywhere and go on: the same multipliers, labels, samples and versions as the unbroken run."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table

from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.journal import Journal, read_journal, schema
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.tiers import in_full
from tests.unit.loop.small_run import SMALL, finish, small, story

pytestmark = pytest.mark.run

Place = tuple[int, str]


class PowerCut(BaseException):
    """Not an Exception: nothing on the way may catch it and tidy up."""


def phases_of(run_dir: Path) -> set[Place]:
    with read_journal(run_dir / JOURNAL, run_dir.name) as journal:
        return {(entry.round, entry.phase) for entry in journal.phases()}


@pytest.fixture
def cuts_before_commit(monkeypatch: pytest.MonkeyPatch) -> set[Place]:
    """The power goes once in every phase, after its work and before its commit."""
    survived: set[Place] = set()
    write = Journal._write

    def write_or_cut(journal: Journal, added: Sequence[tuple[Table, list[dict[str, Any]], bool]]) -> None:
        for table, new, _ in added:
            for row in new if table is schema.phase else ():
                if (row["round"], row["phase"]) not in survived:
                    survived.add((row["round"], row["phase"]))
                    raise PowerCut
        write(journal, added)

    monkeypatch.setattr(Journal, "_write", write_or_cut)
    return survived


def run_through_cuts(run_dir: Path, algorithm: str, progress: Any = None) -> None:
    resume = False
    for _ in range(200):
        try:
            run_recipe(small(f"algorithm={algorithm}"), run_dir, resume=resume, progress=progress)
        except PowerCut:
            resume = True
            continue
        return
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("algorithm", ["o-pd-dpo", *in_full("o-pd-dpo-paper", "pd-dpo")])
def test_a_run_cut_in_the_middle_of_every_phase_equals_the_unbroken_one(
    tmp_path: Path, algorithm: str, cuts_before_commit: set[Place]
) -> None:
    run_through_cuts(tmp_path / "cut" / "run", algorithm)
    broken, places = story(tmp_path / "cut" / "run"), set(cuts_before_commit)
    assert places == phases_of(tmp_path / "cut" / "run")
    assert {"fit-reward", "fit-cost", "publish", "sample", "safety", "dual"} <= {phase for _, phase in places}
    # Every place was survived, so the next run is never cut.
    assert finish(small(f"algorithm={algorithm}"), tmp_path / "whole" / "run") == broken


@pytest.mark.full
def test_a_run_cut_right_after_every_commit_equals_the_unbroken_one(tmp_path: Path) -> None:
    survived: set[Place] = set()

    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and event.event.what == "phase-finished":
            place = (event.event.round, event.event.phase)
            if place not in survived:
                survived.add(place)
                raise PowerCut

    run_through_cuts(tmp_path / "cut" / "run", "o-pd-dpo", cut)
    assert survived == phases_of(tmp_path / "cut" / "run")
    assert finish(small(), tmp_path / "whole" / "run") == story(tmp_path / "cut" / "run")


def test_a_process_killed_in_mid_round_is_continued_by_another(tmp_path: Path) -> None:
    program = f"""
        import os, signal
        from pathlib import Path
        from pddpo_ray.config import load
        from pddpo_ray.driver.run import PhaseChanged, run_recipe

        def die(event):
            if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (2, "safety"):
                os.kill(os.getpid(), signal.SIGKILL)

        run_recipe(load("tabular", {[*SMALL, "rounds=2"]!r}), Path({str(tmp_path / "cut" / "run")!r}), progress=die)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert ended.returncode == -9
    assert (2, "sample") in phases_of(tmp_path / "cut" / "run")
    assert (2, "safety") not in phases_of(tmp_path / "cut" / "run")
    assert finish(small(), tmp_path / "cut" / "run", resume=True) == finish(small(), tmp_path / "whole" / "run")
