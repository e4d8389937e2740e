"""A run is told to stop, says what it said, and goes on when the same command is given again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pddpo_ray.cli.main import main
from pddpo_ray.cli.runs.run_log import stoppable
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import StoppedError
from tests.support.traces import trace

ROOT = Path(__file__).parents[3]
SMALL = [
    "rounds=3",
    "feedback.responses=32",
    "limits.cost.labels_each=8",
    "offline.pairs=100",
    "offline.compare_rounds=0",
]
LONG = [*SMALL, "rounds=400"]
"""More rounds than anybody waits for."""


def command(run_dir: Path, *settings: str) -> list[str]:
    train = [sys.executable, "-m", "pddpo_ray", "train", "tabular", *settings, "dual.rule={kind: anytime}"]
    return [*train, "report.html=false", "--run", str(run_dir), "--go-on"]


def wait_for_a_round(run_dir: Path) -> None:
    log, deadline = run_dir / "train.log", time.monotonic() + 120
    while not (log.exists() and "round 1/" in log.read_text()):
        assert time.monotonic() < deadline, "no round in two minutes"
        time.sleep(0.05)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        main(list(arguments))
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@contextmanager
def driving(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver of the run, which is gone after the block."""
    with subprocess.Popen(
        command(run_dir, *LONG), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as driver:
        try:
            yield driver
        finally:
            driver.kill()


@pytest.mark.full
@pytest.mark.slow
def test_a_run_that_was_told_to_stop_goes_on_with_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "run"
    told = f"{here} was told to stop: --resume continues it, finished phases are kept"
    with driving(here) as driver:
        wait_for_a_round(here)
        code, out, err = said(capsys, "stop", str(here), "--json")
        assert code == 0, err
        assert json.loads(out)["stopped"] == f"process {driver.pid}"
        assert driver.stderr is not None
        assert driver.stderr.read().splitlines()[-1] == f"pddpo: {told}"
        assert driver.wait(timeout=60) == 143
    done = len(trace(here)["multipliers"])
    assert 1 <= done < 400

    code, out, _ = said(capsys, "logs", str(here))
    assert code == 0
    assert "round 1/400" in out
    assert out.splitlines()[-1] == f"pddpo: {told}"
    code, out, _ = said(capsys, "stop", str(here))
    assert (code, out) == (0, f"no process drives the run in {here}\n")

    # a run that nobody stopped, of which the other has the same beginning
    run_recipe(load("tabular", [*SMALL, f"rounds={done + 2}", "dual.rule={kind: anytime}"]), tmp_path / "whole")
    with driving(here) as again:
        deadline = time.monotonic() + 120
        while len(trace(here)["multipliers"]) < done + 2:
            assert time.monotonic() < deadline
            assert again.poll() is None
            time.sleep(0.2)
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=120)  # reads what it says: a full pipe would hold it up
        assert again.returncode == 143
    assert trace(here)["multipliers"][: done + 2] == trace(tmp_path / "whole")["multipliers"]


def test_a_signal_that_is_lost_in_a_finalizer_ends_the_run_at_its_next_event(tmp_path: Path) -> None:
    class Finalized:
        def __del__(self) -> None:
            with suppress(SystemExit):
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)

    def lost() -> None:
        with stoppable(tmp_path) as stop:
            stop.check()
            Finalized()
            stop.check()
            pytest.fail("went on")

    with pytest.raises(StoppedError, match="was told to stop"):
        lost()
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_a_library_makes_of_the_signal_is_a_stop_as_well(tmp_path: Path) -> None:
    def translated() -> None:
        with stoppable(tmp_path):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except SystemExit as stop:
                raise RuntimeError("a callback raised") from stop

    with pytest.raises(StoppedError, match="was told to stop"):
        translated()


@pytest.mark.run
def test_go_on_begins_a_run_and_then_goes_on_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = command(tmp_path / "run", *SMALL)[3:]
    assert said(capsys, *arguments)[2].splitlines()[0].endswith(": begins")
    assert said(capsys, *arguments)[2].splitlines()[0].endswith(": continues")
    code, _, err = said(capsys, "train", "tabular", "--go-on")
    assert (code, "--go-on needs the run folder" in err) == (2, True)


@pytest.mark.run
def test_a_run_that_is_driven_on_another_host_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pddpo_ray.journal import lock
    from pddpo_ray.journal.database import open_database

    run_recipe(load("tabular", [*SMALL, "rounds=1"]), tmp_path / "run")
    from pddpo_ray.cli.runs.recipe_of_run import find_run

    engine = open_database(tmp_path / "run" / "journal.sqlite")
    monkeypatch.setattr(lock.socket, "gethostname", lambda: "elsewhere")
    held = lock.DriverLock(engine, find_run(tmp_path / "run", None).id)
    monkeypatch.undo()
    try:
        code, _, err = said(capsys, "stop", str(tmp_path / "run"))
        assert (code, err.count("\n")) == (2, 1)
        assert f"driven by process {os.getpid()} on elsewhere: call this command there" in err
    finally:
        held.release()
        engine.dispose()


@pytest.mark.run
def test_a_run_without_a_log_and_no_run_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_recipe(load("tabular", [*SMALL, "rounds=1"]), tmp_path / "run")
    for verb, folder, message in (
        ("logs", "run", "train.log does not exist"),
        ("logs", "none", "there is no run in"),
        ("stop", "none", "there is no run in"),
    ):
        code, _, err = said(capsys, verb, str(tmp_path / folder))
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
