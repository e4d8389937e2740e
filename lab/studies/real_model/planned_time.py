"""Planned against measured on SmolLM2.

    python -m lab.studies.real_model.planned_time [--cluster in-process|ray] [--out FILE]

`pddpo train ... --dry-run --calibrate --json` says what a run takes, and the same run is made at once: two rounds with
adapters, reward and cost models trained from the reference before them. Compared are wall and CPU seconds of every
stretch, tokens, bytes of artifacts, and the most memory that each process held. On a machine that does other work too
the CPU seconds are what says something; on Ray they are shown only, because the plan's are those of one process. Memory
of a process counts with the pages that it shares with others, that of Ray's many small processes counts them once. Exit
code 1 where a row is off by more than a quarter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.__main__ import machine, versions
from pddpo_ray.backends.machine import GIB
from pddpo_ray.driver.result import START, WALL
from pddpo_ray.journal import read_journal
from pddpo_ray.storage.whole_files import ARTIFACTS, JOURNAL
from pddpo_ray.training.models.pretrained import fetch

TOLERANCE = 0.25
ROUNDS = 2
SETTINGS = (
    f"rounds={ROUNDS}",
    "model.parameters={kind: lora, rank: 8}",
    *("data.prompt_count=24", "data.prompt_tokens=96", "data.answer_tokens=64", "offline.pairs=20"),
    *("feedback.responses=16", "rollout.max_tokens=32", "rollout.max_model_len=160"),
    *("rollout.candidates=4", "rollout.canary_tolerance=1e-3"),
    "explore={calibration: 24, rank: 8, prompts: 4, picks: 1, weights: bonus_only, baseline_answers: 4}",
    "scorers.fit={steps: 2, learning_rate: 1.0e-4, batch_pairs: 4}",
    "trainer.fit={steps: 3, learning_rate: 2.0e-4, batch_pairs: 4}",
)
ON_RAY = "cluster={mode: ray, cpus: 4}"
LOOK_S = 0.2
LOOKS_PER_SHARE = 10
"""Dividing shared pages is dear for the kernel: not at every look."""


@dataclass(frozen=True)
class Row:
    """One number of the plan and what the run came to."""

    what: str
    planned: float
    measured: float
    unit: str
    judged: bool = True
    """Whether the quarter holds for it; a part of another row is shown alone."""

    @property
    def ratio(self) -> float:
        """Planned over measured."""
        return self.planned / self.measured if self.measured else float("inf")

    @property
    def met(self) -> bool:
        return not self.judged or abs(self.ratio - 1.0) <= TOLERANCE

    def line(self) -> str:
        verdict = "" if not self.judged else "within a quarter" if self.met else "MISSED"
        numbers = f"{self.planned:9.2f} {self.measured:9.2f} {self.unit:5s} {self.ratio:5.2f}"
        return f"{self.what:34s} {numbers}  {verdict}"


class Watch:
    """The most memory and the CPU seconds of a process and of all that it starts, while they live."""

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._shares: dict[int, int] = {}
        self._spent: list[tuple[float, float]] = []
        self._held: dict[int, tuple[str, int]] = {}
        self._cpu: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        looks = 0
        while not self._ended.wait(LOOK_S):
            for process in _family(self._root):
                self._note(process)
                if looks % LOOKS_PER_SHARE == 0:
                    self._note_share(process.pid)
            self._spent.append((time.time(), self.cpu_seconds))
            looks += 1

    def _note(self, process: psutil.Process) -> None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            times, words = process.cpu_times(), process.cmdline()
        except (OSError, psutil.Error):
            return
        peak = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)
        name = "driver" if process.pid == self._root else words[0] if words else "?"
        self._held[process.pid] = name, max(peak, self._held.get(process.pid, ("", 0))[1])
        self._cpu[process.pid] = times.user + times.system

    def _note_share(self, pid: int) -> None:
        """Its part of the pages that it shares, and all of its own."""
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            return
        share = next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)
        self._shares[pid] = max(share, self._shares.get(pid, 0))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def cpu_seconds(self) -> float:
        return sum(self._cpu.values())

    def cpu_until(self, epoch_s: float) -> float:
        """CPU seconds of all processes until a time of the wall clock."""
        return max((cpu for at, cpu in self._spent if at <= epoch_s), default=0.0)

    def shared_out(self, others: Sequence[str]) -> int:
        """Bytes of all processes but those whose names hold one of `others`, pages that they share divided."""
        mine = [pid for pid, (name, _) in self._held.items() if not any(other in name for other in others)]
        return sum(self._shares.get(pid, 0) for pid in mine)

    def peaks(self) -> dict[str, list[int]]:
        """Most bytes of each process, by the name that it gave itself."""
        found: dict[str, list[int]] = defaultdict(list)
        for name, peak in self._held.values():
            found[name].append(peak)
        return dict(found)


def _family(pid: int) -> Iterator[psutil.Process]:
    try:
        root = psutil.Process(pid)
        yield root
        yield from root.children(recursive=True)
    except psutil.Error:
        return


def pddpo(arguments: Sequence[str], log: Path) -> tuple[dict[str, Any], Watch]:
    """One command in a process of its own. -> its JSON, what it held. RuntimeError if it fails"""
    command = [sys.executable, "-m", "pddpo_ray", *arguments, "--json"]
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **quiet}
        )
        watch = Watch(process.pid)
        said, _ = process.communicate()
        watch.end()
    if process.returncode != 0:
        raise RuntimeError(f"pddpo {arguments[0]} ended with {process.returncode}: {log.read_text()[-3000:]}")
    told: dict[str, Any] = json.loads(said)
    return told, watch


def rows_of(plan: Mapping[str, Any], run: Path, watch: Watch, *, on_ray: bool) -> list[Row]:
    """Every number of the plan beside the run's own."""
    with read_journal(run / JOURNAL) as journal:
        metrics = journal.metrics()
        ends = {entry.round: entry.finished_ms / 1000 for entry in journal.phases()}
    first, last = metrics[1], metrics[ROUNDS]
    wall, cpu = plan["seconds"]["wall"], plan["seconds"]["cpu"]
    seconds = {
        "start": metrics[0][START],
        "before": metrics[0][WALL],
        "first_round": first[WALL],
        "round": last[WALL],
    }
    whole = metrics[0][START] + sum(metrics[number][WALL] for number in range(ROUNDS + 1))
    rows = [Row(f"wall: {name}", wall[name], value, "s", judged=False) for name, value in seconds.items()]
    rows.append(Row("wall: the whole run", wall["run"], whole, "s"))
    spent = [watch.cpu_until(ends[number]) for number in range(ROUNDS + 1)]
    stretches = {"start and before": (cpu["start"] + cpu["before"], spent[0])}
    stretches |= {
        "first_round": (cpu["first_round"], spent[1] - spent[0]),
        "round": (cpu["round"], spent[2] - spent[1]),
    }
    stretches["the whole run"] = cpu["run"], watch.cpu_seconds
    rows += [Row(f"CPU: {name}", *both, "CPU-s", judged=not on_ray) for name, both in stretches.items()]
    work = plan["work"]
    planned = work["before"]["tokens"] + work["first_round"]["tokens"] + (ROUNDS - 1) * work["round"]["tokens"]
    drawn = sum(
        value
        for values in metrics.values()
        for name, value in values.items()
        if name.startswith("rollout/") and name.endswith("_tokens")
    )
    rows.append(Row("tokens drawn (planned: at most)", planned, drawn, "", judged=True))
    rows.append(Row("artifacts on disk", plan["stored_bytes"] / GIB, size_of(run / ARTIFACTS) / GIB, "GiB"))
    return rows + (memory_on_ray(plan, watch) if on_ray else memory_of_one(plan, watch))


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def memory_of_one(plan: Mapping[str, Any], watch: Watch) -> list[Row]:
    (peak,) = watch.peaks()["driver"]
    return [Row("memory of the process", plan["host_bytes"] / GIB, peak / GIB, "GiB")]


PARTS = {"trainer": "TrainWorker", "rollout": "RolloutActor", "scorer": "ScorerActor", "driver": "driver"}
"""Parts of a run on Ray, and what their processes are called."""


def memory_on_ray(plan: Mapping[str, Any], watch: Watch) -> list[Row]:
    """Each kind of process; of several of a kind the largest."""
    planned, peaks = plan["memory_by_process"], watch.peaks()
    rows = []
    for part, called in PARTS.items():
        held = [peak for name, found in peaks.items() if called in name for peak in found]
        rows.append(Row(f"memory of {part}", planned[part] / GIB, max(held, default=0) / GIB, "GiB"))
    rest = watch.shared_out(list(PARTS.values()))
    return [*rows, Row("memory of Ray itself", planned["ray"] / GIB, rest / GIB, "GiB")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.studies.real_model.planned_time", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--cluster", choices=("in-process", "ray"), default="in-process")
    parser.add_argument("--out", type=Path, help="also write the rows to this file, as JSON")
    options = parser.parse_args(arguments)
    on_ray = options.cluster == "ray"
    recipe = ["real-text", *SETTINGS, f"model.reference={fetch('smollm2')}", *([ON_RAY] if on_ray else [])]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        told, _ = pddpo(["train", *recipe, "--dry-run", "--calibrate"], folder / "plan.log")
        _, watch = pddpo(["train", *recipe, "--run", str(folder / "run")], folder / "run.log")
        rows = rows_of(told["plan"], folder / "run", watch, on_ray=on_ray)
    print(f"{'':34s}   planned  measured       ratio")
    for row in rows:
        print(row.line())
    print(f"({time.monotonic() - began:.0f} s)")
    if options.out is not None:
        found = [asdict(row) | {"ratio": row.ratio, "met": row.met} for row in rows]
        stamp = {"machine": machine(False), "versions": versions(), "cluster": options.cluster}
        options.out.write_text(json.dumps({**stamp, "rows": found}, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
