"""`pddpo status`: of a run that waits, of one that died, and of one whose page is served."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.cli.main import main
from pddpo_ray.cli.runs.recipe_of_run import find_run
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import ParkedError
from pddpo_ray.journal.database import now_ms, open_database
from pddpo_ray.journal.server_lock import served_at, sole_server
from tests.runs.test_people_run import SETTINGS
from tests.support.annotation_queue import FreshQueue
from tests.unit.loop.small_run import run_of


def status(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["status", str(folder), *options])
    assert not end.value.code
    return capsys.readouterr().out


def told(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(status(folder, capsys, "--json"))
    return found


@pytest.mark.run
def test_a_parked_run_says_what_is_missing_who_is_needed_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    with pytest.raises(ParkedError):
        run_recipe(load("tabular", [*SETTINGS, "people.park_after_s=0"]), folder)
    first = told(folder, capsys)
    assert (first["state"], first["rounds_done"], first["rounds"]) == ("waiting for people", 0, 2)
    assert first["missing"] == {"safety": 24, "pair": 4}
    assert {one["batch"] for one in first["batches"]} == {"1/safety", "1/compare"}
    assert "3 more people are needed" in next(one["lacking"] for one in first["batches"] if one["kind"] == "safety")
    assert (first["page"], first["flags"]) == (None, {})
    engine = open_database(folder / "journal.sqlite")
    queue = FreshQueue(engine, now_ms=now_ms())
    queue.store.run = run_of(folder)
    ana = queue.person("ana")
    held = queue.leases.lease(ana)
    assert isinstance(held, Lease)
    queue.answers.answer(ana, "first-answer", held.id, Submission("label", {"safety": "safe"}))
    with sole_server(engine, "http://127.0.0.1:8790/"):
        printed = status(folder, capsys)
        quick = queue.person("quick")
        while isinstance(asked := queue.leases.lease(quick), Lease) and asked.kind == "safety":
            queue.answers.answer(quick, f"quick-{asked.id}"[:60], asked.id, Submission("label", {"safety": "safe"}))
        assert told(folder, capsys)["flags"] == {"quick": ["speed"]}
        assert told(folder, capsys)["page"] == "http://127.0.0.1:8790/"
    assert served_at(str(folder / "journal.sqlite")) is None
    engine.dispose()
    assert re.search(r"run +\S+ \(waiting for people\)", printed)
    assert re.search(r"missing +23 safe-or-unsafe labels", printed)
    assert "2 more people are needed" in printed
    assert re.search(r"page +http://127.0.0.1:8790/", printed)
    assert "pddpo annotations decide" in printed


@pytest.mark.full
@pytest.mark.slow
def test_a_run_is_running_while_its_process_lives_and_waits_after_it_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "pddpo_ray", "train", "tabular", *SETTINGS, "--run", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        find_run(folder, None, wait=True)
        while time.monotonic() < deadline and not told(folder, capsys)["missing"]:
            time.sleep(0.2)
        alive = told(folder, capsys)
    finally:
        process.kill()
        process.wait(30)
    dead = told(folder, capsys)
    assert (alive["state"], alive["next"]) == ("running", [])
    assert dead["state"] == "waiting for people"
    assert dead["missing"]["safety"] == alive["missing"]["safety"] == 24


@pytest.mark.run
def test_a_run_that_asks_nobody_and_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    settings = ["rounds=1", "feedback.responses=8", "limits.cost.labels_each=5", "report.tensorboard=false"]
    run_recipe(load("tabular", [*settings, "report.html=false"]), folder)
    found = told(folder, capsys)
    assert (found["state"], found["missing"], found["batches"], found["certified"]) == ("finished", {}, [], False)
    assert found["outcome"].startswith("No policy is certified, and none is released")
    assert found["next"][0] == f"`pddpo certify {folder}` tests the last policy on fresh answers"
    with pytest.raises(SystemExit) as end:
        main(["status", str(tmp_path / "nothing")])
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
