"""The set-up: lock, metadata, Makefile and cluster file say the same things."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from actors.deepspeed_engine import wait_for_builds
from pddpo_ray import __version__

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements" / "py311.lock"
OF_312 = ROOT / "requirements" / "py312.lock"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = ("setup", "demo", "check", "test", "full", "lint", "chaos", "real", "compare", "bench", "clean")
NOT_LOCKED = ("torch", "triton", "torchvision", "torchaudio", "torchcodec")


def locked(lock: Path = LOCK) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([\w.\-]+)==(\S+)", lock.read_text(encoding="utf-8")))


def requirements(*extras: str) -> list[Requirement]:
    """Of the base and these extras, and of the extras that they name."""
    texts, pending, seen = list(PROJECT["dependencies"]), list(extras), set[str]()
    while pending:
        extra = pending.pop()
        if extra not in seen:
            seen.add(extra)
            texts += PROJECT["optional-dependencies"][extra]
            pending += [named for text in texts for named in Requirement(text).extras if is_own(text)]
    return [Requirement(text) for text in texts if not is_own(text)]


def is_own(text: str) -> bool:
    return canonicalize_name(Requirement(text).name) == PROJECT["name"]


@pytest.mark.parametrize(
    "requirement", requirements("cpu", "postgres", "smollm2", "dev"), ids=lambda requirement: requirement.name
)
def test_the_lock_meets_every_bound(requirement: Requirement) -> None:
    version = locked().get(canonicalize_name(requirement.name))
    if requirement.name == "torch":
        match = re.search(r"(?m)^TORCH := torch==(\S+)$", MAKEFILE)
        assert match is not None
        version = match[1]
    assert version is not None, f"{requirement.name} is not in {LOCK.name}"
    assert requirement.specifier.contains(version)


@pytest.mark.parametrize("lock", [LOCK, OF_312], ids=lambda lock: lock.stem)
def test_every_locked_package_has_hashes(lock: Path) -> None:
    blocks = re.split(r"(?m)^(?=[A-Za-z])", lock.read_text(encoding="utf-8"))[1:]
    assert len(blocks) == len(locked(lock)) > 100
    assert [block.split("==")[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_torch_and_cuda_builds_stay_out_of_the_lock() -> None:
    names = set(locked())
    assert not names & set(NOT_LOCKED)
    assert not [name for name in names if name.startswith("nvidia")]


@pytest.mark.parametrize("lock", [LOCK, OF_312], ids=lambda lock: lock.stem)
def test_the_lock_names_no_index(lock: Path) -> None:
    assert not re.search(r"https?://|--(?:extra-)?index-url", lock.read_text(encoding="utf-8"))


def test_the_lock_for_3_12_holds_the_packages_and_versions_of_the_tested_one() -> None:
    assert locked(OF_312) == locked()


def test_vllm_never_lacks_a_lower_bound() -> None:
    bounds = [str(requirement.specifier) for requirement in requirements("cpu", "gpu") if "vllm" in requirement.name]
    assert bounds == ["<0.33,>=0.32"] * 2


def test_the_version_is_stated_once() -> None:
    assert PROJECT["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_licence_is_apache_2() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert (ROOT / "NOTICE").is_file()


@pytest.mark.run
@pytest.mark.parametrize(
    "target", ["setup", "demo", "check", "test", "full", "lint", "chaos", "real", "compare", "bench", "clean"]
)
def test_make_knows_its_targets(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr


def commands_of(target: str) -> list[str]:
    """What make would run of the environment's own programs."""
    done = subprocess.run(
        ["make", "--dry-run", target], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    commands = [line.removeprefix("nice -n 5 ") for line in done.stdout.splitlines()]
    return [command for command in commands if command.startswith(".venv/bin/")]


@pytest.mark.run
def test_make_check_runs_formatter_linter_types_and_tests_and_each_tier_what_is_below_it() -> None:
    check, test, full = (commands_of(target) for target in ("check", "test", "full"))
    for word in ("check .", "format", "mypy", "pytest"):
        assert any(word in line for line in check), word
    assert set(check) < set(test)
    # `full` has expressions of its own, which the next test reads
    assert {line for line in check if "pytest" not in line} < set(full)


MARKS = ("run", "slow", "full", "ray", "vllm", "deepspeed", "browser", "postgres", "gpu")


@pytest.mark.run
@pytest.mark.parametrize("marks", ["", *MARKS, "slow full", "ray vllm", "vllm run", "vllm full"])
def test_make_full_runs_a_test_once_whatever_its_marks_are(marks: str) -> None:
    """And nothing that is `chaos` or `real`."""
    expressions = [line.split('-m "')[1].split('"')[0] for line in commands_of("full") if "pytest" in line]

    def lines_with(*all_marks: str) -> int:
        names = dict.fromkeys((*MARKS, "chaos", "real"), False) | dict.fromkeys(all_marks, True)
        return sum(bool(eval(expression, {}, names)) for expression in expressions)

    found = [lines_with(*marks.split(), *more) for more in ((), ("chaos",), ("real",))]
    assert found == [1, 0, 0]


@pytest.mark.run
@pytest.mark.parametrize("version", ["311", "312", "313"])
def test_set_up_takes_the_lock_of_the_interpreter(version: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    arguments = ["make", "--dry-run", "--always-make", "setup", f"PYTHON={python}"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    assert f"-r requirements/py{version}.lock" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("test -f requirements/")]
    check = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert (check.returncode, check.stdout.count("3.11 and 3.12")) == ((1, 1) if version == "313" else (0, 0))


@pytest.mark.run
def test_another_torch_index_is_used_for_torch_alone() -> None:
    arguments = ["make", "--dry-run", "--always-make", "setup", "TORCH_INDEX=https://cpu.example"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    (line,) = [line for line in done.stdout.splitlines() if "cpu.example" in line]
    assert re.search(r"torch==\S+ --extra-index-url https://cpu.example", line)


def test_the_cluster_file_asks_for_a_token_and_opens_nothing() -> None:
    cluster = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    starts = [*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]]
    assert all("RAY_AUTH_MODE=token" in command for command in starts if "ray start" in command)
    assert "0.0.0.0" not in str(cluster)
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


@pytest.mark.ray
def test_ray_up_accepts_the_cluster_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))))


def test_a_lock_that_a_killed_build_left_is_waited_for_and_goes(tmp_path: Path) -> None:
    """Whoever needs DeepSpeed's CPU op waits without end otherwise; a build that ends releases its own."""
    killed, running = (tmp_path / env / "deepspeed_shm_comm" / "lock" for env in ("killed", "running"))
    for lock in (killed, running):
        lock.parent.mkdir(parents=True)
        lock.touch()
    os.utime(killed, (0, 0))
    ends = Timer(0.3, running.unlink)
    ends.start()
    wait_for_builds(tmp_path)
    ends.join()
    assert not killed.exists()
    assert not running.exists()
