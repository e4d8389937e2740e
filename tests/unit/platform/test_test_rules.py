"""The rules of tests/conftest.py: what may warn, which skips continuous integration does not accept, and crashes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.run

ROOT = Path(__file__).parents[3]
SAMPLE = """
import gc
import socket
import warnings
import pytest

@pytest.mark.browser
def test_needs_a_browser():
    pytest.skip("no chromium here")

@pytest.mark.gpu
def test_needs_a_gpu():
    pytest.skip("no CUDA device")

def test_skips_for_its_own_reason():
    pytest.skip("not on this platform")

@pytest.mark.ray
def test_third_party_may_warn():
    warnings.warn("theirs", UserWarning)

def test_ours_may_not_warn():
    warnings.warn("ours", UserWarning)

class Holder:
    pass

@pytest.mark.ray
def test_third_party_may_leave_a_socket_open():
    holder = Holder()
    holder.itself, holder.socket = holder, socket.socket()

def test_ours_is_not_blamed_for_it():
    gc.collect()
"""


CRASHES = """
import os
import time
from pathlib import Path

def test_before():
    pass

def test_crashes_once():
    if not Path("crashed").exists():
        Path("crashed").touch()
        crash()

def test_between():
    pass

def test_crashes_always():
    with Path("always").open("a") as file:
        file.write("x")
    crash()

def test_is_killed():
    time.sleep(1)
    os.kill(os.getpid(), 9)

def crash():
    time.sleep(1)  # so that what was reported before has arrived
    os.abort()

def test_after():
    pass
"""


TIERS = """
import subprocess
import sys
import time

import conftest
import pytest
import torch

from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe

def starts():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_starts_a_process():
    starts()

def test_runs_a_recipe(tmp_path):
    run_recipe(load("tabular", ["rounds=1", "offline.pairs=40", "offline.compare_rounds=0"]), tmp_path / "run")

def test_fits_a_network():
    model = torch.nn.Linear(1, 1)
    model(torch.ones(1)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()

def test_computes_for_long(monkeypatch):
    monkeypatch.setattr(conftest, "slowness", lambda: 1.0)  # where others slow the machine down, it may take longer
    began = time.process_time()
    while time.process_time() - began < conftest.CHECK_SECONDS * conftest.ROOM + 0.5:
        pass

def test_may_compute_for_longer_on_a_slow_machine(monkeypatch):
    monkeypatch.setattr(conftest, "slowness", lambda: 3.0)
    began = time.process_time()
    while time.process_time() - began < conftest.CHECK_SECONDS * conftest.ROOM + 0.5:
        pass

def test_sleeps_for_long():
    time.sleep(2.1)

def test_computes_a_little():
    time.sleep(0.1)

@pytest.mark.run
def test_that_has_a_mark_may():
    starts()
"""


def output_of(folder: Path, sample: str, *options: str, ci: bool = False) -> str:
    """What pytest prints of a sample under this project's configuration, run in a process of its own."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "test_sample.py").write_text(sample)
    hidden = ("CI", "PYTEST_XDIST_WORKER")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | (
        {"CI": "true"} if ci else {}
    )
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options, "test_sample.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=120
    )
    return done.stdout


def outcomes(folder: Path, ci: bool) -> tuple[dict[str, str], str]:
    """Outcome by test of the sample."""
    output = output_of(folder, SAMPLE, ci=ci)
    return dict(re.findall(r"(?m)^test_sample\.py::(\w+) (PASSED|FAILED|SKIPPED)", output)), output


@pytest.mark.parametrize("ci", [False, True])
def test_skips_of_what_ci_installs_fail_in_ci_alone(tmp_path: Path, ci: bool) -> None:
    found, output = outcomes(tmp_path, ci)
    assert found == {
        "test_needs_a_browser": "FAILED" if ci else "SKIPPED",
        "test_needs_a_gpu": "SKIPPED",
        "test_skips_for_its_own_reason": "SKIPPED",
        "test_third_party_may_warn": "PASSED",
        "test_ours_may_not_warn": "FAILED",
        "test_third_party_may_leave_a_socket_open": "PASSED",
        "test_ours_is_not_blamed_for_it": "PASSED",
    }
    assert "no chromium here" in output
    assert ("CI installs what browser tests need" in output) == ci


@pytest.mark.full
def test_a_test_whose_process_crashes_is_tried_once_more_and_takes_no_other_with_it(tmp_path: Path) -> None:
    output = output_of(tmp_path, CRASHES, "-n", "1")
    found: dict[str, list[str]] = {}
    for outcome, test in re.findall(r"(?m)^\[gw\d\] .*(PASSED|FAILED|SKIPPED) test_sample\.py::(\w+)", output):
        found.setdefault(test, []).append(outcome)
    assert found == {
        "test_before": ["PASSED"],
        "test_crashes_once": ["SKIPPED", "PASSED"],
        "test_between": ["PASSED"],
        "test_crashes_always": ["SKIPPED", "FAILED"],
        "test_is_killed": ["FAILED"],
        "test_after": ["PASSED"],
    }
    assert (tmp_path / "always").read_text() == "xx"
    assert "Tried again, its process crashed: test_sample.py::test_crashes_once" in output
    assert "2 failed, 4 passed, 2 skipped" in output


@pytest.mark.full
def test_where_files_run_side_by_side_a_crash_is_a_failure(tmp_path: Path) -> None:
    output = output_of(tmp_path, CRASHES, "-n", "1", "--dist", "loadfile", "-k", "once")
    assert "1 failed" in output
    assert "crashed while running 'test_sample.py::test_crashes_once'" in output


@pytest.mark.full
@pytest.mark.run
def test_without_a_mark_a_test_is_short_starts_nothing_runs_nothing_and_fits_nothing(tmp_path: Path) -> None:
    output = output_of(tmp_path, TIERS)
    outcomes = re.findall(r"(?m)^test_sample\.py::test_(\w+) (PASSED|FAILED)", output)
    assert {name for name, outcome in outcomes if outcome == "PASSED"} == {
        "computes_a_little",
        "may_compute_for_longer_on_a_slow_machine",
        "that_has_a_mark_may",
    }
    for name, said in (
        ("starts_a_process", "starts a process"),
        ("runs_a_recipe", "runs a recipe and starts a process"),
        ("fits_a_network", "fits a network"),
        ("computes_for_long", r"takes \d\.\d s of processor time and sleep, more than 2"),
        ("sleeps_for_long", r"takes 2\.\d s of processor time and sleep, more than 2"),
    ):
        assert (name, "FAILED") in outcomes
        assert re.search(f"test_{name} {said}: mark it", output)
