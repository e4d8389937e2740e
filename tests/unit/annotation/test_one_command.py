"""Runs with people from the command line: page and simulated people beside a run, and a parked run that goes on."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from pddpo_ray.annotation.queue.resuming import Resumer
from pddpo_ray.cli.runs.crowd import crowd_beside
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal, read_journal
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.lock import is_driven
from tests.support.ports import free_port

SMALL = [
    "rounds=2",
    "feedback.kind=people",
    "feedback.responses=8",
    "limits.cost.labels_each=3",
    "limits.cost={rate: {people: {}}, learned_from: comparisons}",
    "people.gold_rate=0",
    "limits.cost.at_most=0.5",
    "explore.prompts=4",
    "explore.baseline_answers=4",
    "rollout.candidates=4",
    "report.tensorboard=false",
]
PROGRAM = [sys.executable, "-m", "pddpo_ray"]


@pytest.mark.full
@pytest.mark.slow
def test_one_command_runs_the_page_simulated_people_and_the_run_to_its_report(tmp_path: Path) -> None:
    run, port = tmp_path / "demo", free_port()
    command = ["train", "tabular", *SMALL, "--run", str(run), "--annotate", "--simulate", "5"]
    done = subprocess.run(
        [*PROGRAM, *command, "--annotate-port", str(port)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"http://127.0.0.1:{port}/" in done.stdout
    assert json.loads((run / "result.json").read_text())["labels_safety"] == 2 * 8 * 3
    report = (run / "report.html").read_text()
    assert "People in the loop" in report
    assert "Label budget" in report
    assert "Krippendorff" in report
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")
    with read_journal(run / "journal.sqlite", "demo") as journal:
        assert {values["people/safety_annotators"] for n, values in journal.metrics().items() if n} <= {3.0, 4.0, 5.0}


@pytest.mark.full
@pytest.mark.slow
def test_a_parked_run_goes_on_by_itself_when_its_questions_are_answered(tmp_path: Path) -> None:
    run, port = tmp_path / "demo", free_port()
    settings = [*SMALL, "rounds=1", "people.park_after_s=0", "report.html=false"]
    parked = subprocess.run(
        [*PROGRAM, "train", "tabular", *settings, "--run", str(run)], capture_output=True, timeout=300, check=False
    )
    assert parked.returncode == 3
    page = subprocess.Popen(
        [*PROGRAM, "annotate", "--run", str(run), "--port", str(port), "--resume-when-ready"], stdout=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    crowd = subprocess.Popen(
        [*PROGRAM, "simulate-annotators", "--run", str(run), "--url", url, "--people", "5", "--wait"],
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 500
        while not (run / "result.json").exists():
            assert time.monotonic() < deadline, (run / "resume.log").read_text()
            assert page.poll() is None
            time.sleep(0.2)
    finally:
        for process in (crowd, page):
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    assert json.loads((run / "result.json").read_text())["labels_safety"] == 8 * 3
    # Both batches of the round were open when the run parked, so one resumption finds all labels.
    assert "Parked" not in (run / "resume.log").read_text()


def test_a_run_is_not_resumed_while_somebody_drives_it_or_answers_are_missing(tmp_path: Path) -> None:
    config = load("tabular", SMALL)
    place = tmp_path / "demo" / "journal.sqlite"
    with Journal.open(place, "demo", create=config.model_dump(mode="json"), fixed=config.fixed_settings()):
        engine = open_database(place)
        assert is_driven(engine, "demo")
    resumer = Resumer(engine, "demo", config, tmp_path / "demo", look_s=0.01)
    assert not is_driven(engine, "demo")
    assert not resumer.ready()
    resumer.start()
    resumer.end()
    assert resumer.join(30)
    assert resumer.exits == []
    engine.dispose()


def test_the_page_is_refused_where_nobody_is_asked_or_the_port_is_taken(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"feedback\.kind=people"),
        crowd_beside(load("tabular"), tmp_path, port=free_port(), people=0, error=0.0),
    ):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with (
            pytest.raises(UserError, match="--annotate-port"),
            crowd_beside(load("tabular", SMALL), tmp_path, port=port, people=0, error=0.0),
        ):
            pass


@pytest.mark.full
@pytest.mark.slow
def test_the_recipe_with_people_on_the_text_world_finishes_in_one_command(tmp_path: Path) -> None:
    """Its sizes made tiny and its parts in one process: what is tried is that people's words reach a language model."""
    tiny = [
        "cluster={mode: in-process}", "rollout={engine: transformers, max_tokens: 40, candidates: 4}", "rounds=1",
        "trainer.fit.steps=4", "offline.pairs=48", "offline.compare_rounds=0",
        "feedback.responses=6", "limits.cost.labels_each=3", "explore.prompts=4", "explore.picks=2",
        "explore.calibration=64", "explore.baseline_answers=4", "explore.rank=16", "report.tensorboard=false",
    ]  # fmt: skip
    run = tmp_path / "demo"
    options = ["--run", str(run), "--annotate", "--simulate", "6", "--annotate-port", str(free_port())]
    command = [*PROGRAM, "train", "text-world-people", *tiny, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((run / "result.json").read_text())
    assert result["labels_safety"] == 6 * 3
    assert "Krippendorff" in (run / "report.html").read_text()
    with read_journal(run / "journal.sqlite", "demo") as journal:
        assert {entry.labeller for entry in journal.pairs(1)} == {"people"}
        assert journal.metrics()[1]["people/compare_labels"] == 8 + 2, (
            "one pair in ten, here of eight, goes to three people"
        )
