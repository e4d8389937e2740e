"""What this machine has, found without importing torch or Ray."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One CUDA device as its driver describes it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """Resources of this machine; sizes in bytes."""

    cpus: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()


def inspect_machine() -> Machine:
    """This machine, as this process may use it: CPU affinity and the container's memory limit count."""
    return Machine(cpus=len(os.sched_getaffinity(0)), memory_bytes=_memory(), gpus=_gpus())


def planned_machine(gpus: int | None, gpu_memory: float) -> Machine:
    """This machine (gpus: None), or one with `gpus` such GPUs, and 8 cores and 1.5 times its memory for each."""
    machine = inspect_machine()
    if not gpus:
        return machine if gpus is None else replace(machine, gpus=())
    cards = tuple(Gpu(f"GPU of {gpu_memory:g} GiB", int(gpu_memory * GIB)) for _ in range(gpus))
    return Machine(8 * gpus, int(1.5 * gpu_memory * gpus * GIB), cards)


def _memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        return min(total, int(limit.read_text().strip()))
    except (OSError, ValueError):  # no such file, or the word "max"
        return total


def _gpus() -> tuple[Gpu, ...]:
    """Devices by the driver's own tool, limited by CUDA_VISIBLE_DEVICES; none where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return visible_gpus(answer, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(listing: str, visible: str | None) -> tuple[Gpu, ...]:
    """Devices of a `name, MiB` listing. `visible` is CUDA_VISIBLE_DEVICES: unset means all, empty means none."""
    gpus = []
    for line in listing.strip().splitlines():
        name, _, mebibytes = line.rpartition(",")
        gpus.append(Gpu(name.strip(), int(mebibytes) * 2**20))
    if visible is None:
        return tuple(gpus)
    return tuple(gpus[: len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])])
