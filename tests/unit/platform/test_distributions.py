"""Wheel and source distribution: built from what is tracked, they hold every file that the packages need."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from pddpo_ray import __version__

ROOT = Path(__file__).parents[3]
PACKAGES = ("pddpo_ray/", "actors/", "deploy/")
BUILD = "from setuptools import build_meta as b; print(b.build_sdist('dist')); print(b.build_wheel('dist'))"
NOT_SHIPPED = ("deploy/container/", "deploy/helm/", "deploy/cluster/", "deploy/slurm/")
SUFFIXES = (".py", ".css", ".html", ".ini", ".js", ".json", ".jsonl", ".mako", ".md", ".svg", ".yaml", "py.typed")


@pytest.mark.full
@pytest.mark.slow
def test_wheel_and_source_hold_what_the_packages_need(tmp_path: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    tree = tmp_path / "tree"
    for name in tracked:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    built = subprocess.run([sys.executable, "-c", BUILD], cwd=tree, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[-3000:]
    wheel, source = tree / "dist" / f"pddpo_ray-{__version__}-py3-none-any.whl", tree / "dist"
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        about = archive.read(f"pddpo_ray-{__version__}.dist-info/METADATA").decode()
    needed = {
        name for name in tracked if name.startswith(PACKAGES) and name.endswith(SUFFIXES) and (tree / name).exists()
    }
    missing = {name for name in needed if not name.startswith(NOT_SHIPPED)} - held
    assert not missing
    assert not [name for name in held if name.startswith(("lab/", "pddpo_lab/"))]
    assert f"Version: {__version__}\n" in about
    assert (
        "pddpo = pddpo_ray.cli.main:main"
        in zipfile.ZipFile(wheel).read(f"pddpo_ray-{__version__}.dist-info/entry_points.txt").decode()
    )
    with tarfile.open(source / f"pddpo_ray-{__version__}.tar.gz") as archive_of_sources:
        sources = {name.partition("/")[2] for name in archive_of_sources.getnames()}
    assert needed - {name for name in needed if name.startswith(NOT_SHIPPED)} <= sources
    assert {"README.md", "LICENSE", "NOTICE", "pyproject.toml"} <= sources
