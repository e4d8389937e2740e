"""Where a result comes from: date, version, commit, command, machine, and the hashes of model and data."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pddpo_ray.backends.machine import inspect_machine
from pddpo_ray.config import Config, TabularWorldConfig
from pddpo_ray.journal import JournalReader
from pddpo_ray.registry import names, package_of
from pddpo_ray.storage.artifacts import file_sha256

PACKAGE = "pddpo-ray"
ROOT = Path(__file__).resolve().parents[2]
"""The checkout that this package is run from, if it is one."""


def sitting(extensions: Mapping[str, str] | None = None) -> dict[str, Any]:
    """This process: when and by which command it began, with which code, on which machine."""
    return {
        "date": now(),
        "version": _version(),
        **({"extensions": dict(extensions)} if extensions else {}),
        "commit": _commit(),
        "command": shlex.join(sys.argv),
        "machine": _machine(),
    }


def extensions_of(config: Config) -> dict[str, str]:
    """{"bonuses/steady": "pddpo-politeness 0.1.0"}: what installed packages bring to a run, with their versions."""
    measures = [*config.stated, *filter(None, [config.computed_reward])]
    uses = [("methods", config.algorithm), *(("dual_rules", dual.rule.kind) for dual in config.duals.values())]
    uses += [("worlds", config.world.kind)] if config.world is not None else []
    uses += [("bonuses", config.explore.bonus)] if config.online else []
    uses += [("feedback", config.feedback.kind)]
    uses += [("sources", measure.source.kind) for measure in measures if measure.source.kind in names("sources")]
    uses += [
        ("rules", measure.source.what)
        for measure in measures
        if measure.source.kind == "rule" and measure.source.what in names("rules")
    ]
    uses += [("trackers", name) for name in config.report.trackers]
    packages = {f"{kind}/{name}": package_of(kind, name) for kind, name in uses}
    return {key: package for key, package in packages.items() if package is not None}


def provenance_of(config: Config, journal: JournalReader) -> dict[str, Any]:
    """`provenance` of result.json: the newest sitting, and what the run was made from."""
    stored = journal.about
    reference = next((entry.version for entry in journal.versions() if entry.stage == "reference"), None)
    return {
        **(stored.sittings[-1] if stored.sittings else {}),
        "begun": _iso(stored.created_ms / 1000),
        "finished": now(),
        "sittings": len(stored.sittings),
        "run": stored.id,
        "parent": stored.parent,
        "model": None if reference is None else {"name": config.model.reference, "sha256": reference.sha256},
        "data": data_hashes(config),
    }


def data_hashes(config: Config) -> Mapping[str, str | None]:
    """{file: sha256} of the files that the recipe reads; None for one that is gone or is no local file."""
    data, world = config.data, config.world
    if isinstance(world, TabularWorldConfig):
        files = [] if world.path is None else [world.path]
    elif data is not None:
        files = [*data.helpful, *data.harmless, *data.prompts]
    else:
        files = []
    return {name: file_sha256(Path(name)) if Path(name).is_file() else None for name in files}


def now() -> str:
    return _iso(datetime.now(UTC).timestamp())


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _version() -> str | None:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of the checkout that holds this package, with `-dirty` where files were changed; None for an install."""
    if not (ROOT / ".git").exists():
        return None
    try:
        output = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True, text=True, timeout=10, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return output.strip() or None


def _machine() -> dict[str, Any]:
    machine = inspect_machine()
    return {
        "cpu": _cpu(),
        "cores": machine.cpus,
        "memory_bytes": machine.memory_bytes,
        "gpus": [gpu.name for gpu in machine.gpus],
        "os": platform.platform(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
