"""One finished run for all tests that only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddpo_ray.report.build import build_report
from tests.unit.report.synthetic import write_run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six rounds with its report."""
    run_dir = write_run(tmp_path_factory.mktemp("runs") / "six", rounds=6)
    build_report(run_dir)
    return run_dir
