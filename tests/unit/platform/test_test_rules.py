"""The rules of tests/conftest.py: what may warn, and which skips continuous integration does not accept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def outcomes(folder: Path, ci: bool) -> tuple[dict[str, str], str]:
    """Outcome by test of the sample, run under this project's configuration in a process of its own."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "test_sample.py").write_text(SAMPLE)
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | ({"CI": "true"} if ci else {})
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "test_sample.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=120
    )
    return dict(re.findall(r"(?m)^test_sample\.py::(\w+) (PASSED|FAILED|SKIPPED)", done.stdout)), done.stdout


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
