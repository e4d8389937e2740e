"""`make gpu`: what a machine with GPUs has to show, step by step, as a table to paste.

    python -m bench.gpu --gpus 4                    # this machine, or one node of a cluster
    python -m bench.gpu --gpus 8 --nodes 2          # a Ray cluster that is up: --address auto
    python -m bench.gpu --gpus 8 --model FOLDER     # and the first round of gpu/o-pd-dpo-8 with a 7B model
    python -m bench.gpu --gpus 4 --rehearse         # on CPUs, beside GPUs that Ray is only told of

Every step is a process with a deadline. Exit code 0: all passed; 1: a step did not; 2: the machine lacks something.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.plan.resources import bundles
from pddpo_ray.storage.whole_files import JOURNAL, RESULT

SMALL = [
    *["seed=5", "rounds=2", "offline.compare_rounds=0", "offline.pairs=100", "cluster.mode=ray"],
    *["trainer.first_reward.steps=6", "trainer.first_cost.steps=4", "trainer.reward.steps=3", "trainer.cost.steps=3"],
    *["feedback.responses=24", "feedback.labels_each=8", "explore.calibration=192"],
    *["explore.prompts=6", "explore.picks=2", "cluster.start_deadline_s=600.0"],
]
"""The demo's recipe at the size of a check."""
STAGES = ("torch", "zero1", "zero2", "zero3")
KILLED = "round 1/"
"""What the log says when the run is killed: its first round has ended."""
STEP_S, ROUND_7B_S = 1800, 6 * 3600


@dataclass(frozen=True)
class Row:
    step: str
    passed: bool
    seconds: float
    said: str


@dataclass(frozen=True)
class Hardware:
    """What the steps run on."""

    gpus: int
    nodes: int = 1
    address: str | None = None
    rehearse: bool = False

    def overrides(self) -> list[str]:
        """One rank and one engine for each GPU: side by side on one, each on GPUs of its own on several."""
        ranks = max(1, self.gpus * self.nodes // 2)
        where = [f"trainer.workers={ranks}", f"rollout.engines={ranks}"]
        where += [] if self.gpus * self.nodes > 1 else ["cluster.layout=time-shared"]
        where += ["cluster.placement=spread"] if self.nodes > 1 else []
        where += [f"cluster.address={self.address}"] if self.address else []
        if self.rehearse:
            return ["trainer.workers=2", "rollout.engines=1", "trainer.threads=1", "model.device=cpu"]
        return [*where, "model.device=cuda"]


def lacking(hardware: Hardware) -> str | None:
    """What the machine does not have, in one line."""
    if hardware.rehearse:
        return None
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < hardware.gpus:
        return (
            f"this needs {hardware.gpus} CUDA devices on each node, and torch sees {found} here: run it where they are"
        )
    if hardware.nodes > 1 and hardware.address is None:
        return f"{hardware.nodes} nodes need a Ray cluster that is up: start it, then add --address auto"
    return None


def pddpo(*words: str | Path, deadline_s: float = STEP_S) -> str:
    """Runs a command of the package; raises UserError with its last line where it fails. -> what it printed"""
    command = [sys.executable, "-m", "pddpo_ray", *map(str, words)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=deadline_s)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"did not end within {deadline_s:.0f} s") from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise UserError(f"exit code {done.returncode}: {lines[-1][:200]}")
    return done.stdout


def train(folder: Path, *overrides: str) -> str:
    pddpo("train", "text-world", *SMALL, *overrides, "--run", folder, "--go-on")
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if not result["weights_verified"]:
        raise UserError("a delivery of weights was not verified")
    return f"{result['rounds']} rounds, every delivery verified, {sync_seconds(folder)}"


def sync_seconds(folder: Path) -> str:
    """How long the deliveries of a run took."""
    with read_journal(folder / JOURNAL) as journal:
        took = sorted(entry.delivery.seconds for entry in journal.deliveries())
    return f"{len(took)} deliveries, median {took[len(took) // 2]:.2f} s, longest {took[-1]:.2f} s"


def kill_and_resume(folder: Path, overrides: Sequence[str]) -> str:
    """kill -9 of the driver after its first round, then the same command again."""
    words = ["train", "text-world", *SMALL, *overrides, "--run", str(folder), "--go-on"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pddpo_ray", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    log, deadline = folder / "train.log", time.monotonic() + STEP_S
    while not (log.exists() and KILLED in log.read_text(encoding="utf-8")):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise UserError("the run did not come to the end of its first round")
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return "killed after round 1, then " + train(folder, *overrides)


def placed(hardware: Hardware) -> str:
    """Every recipe's processes on nodes with so many GPUs, as Ray places them."""
    import ray

    from actors.placement import check_cluster, reserve

    if hardware.rehearse:
        ray.init(num_cpus=32, num_gpus=hardware.gpus, include_dashboard=False, log_to_driver=False)
    else:
        ray.init(address=hardware.address, log_to_driver=False)
    try:
        names = [f"gpu/{method}-{hardware.gpus}" for method in ("pd-dpo", "pd-dpo-adalag", "o-pd-dpo")]
        for name in names:
            parts = {bundle.part: bundle for bundle in bundles(load(name), "cuda")}
            check_cluster(list(parts.values()))
            groups = [reserve(parts[part], strategy="pack", deadline_s=120) for part in ("rollout", "trainer")]
            for group in groups:
                ray.util.remove_placement_group(group)
    finally:
        ray.shutdown()
    return f"{', '.join(names)}: engines and ranks have their GPUs"


def machine(hardware: Hardware) -> str:
    program = shutil.which("nvidia-smi")
    if hardware.rehearse or program is None:
        return f"no GPU was looked at ({platform.processor() or platform.machine()}, {os.cpu_count()} cores)"
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.strip().splitlines()
    return f"{len(lines)} x {lines[0]}; torch {torch.__version__}, CUDA {torch.version.cuda}"


def steps(hardware: Hardware, folder: Path, model: str | None) -> dict[str, Callable[[], str]]:
    """All that is checked, in order; each returns what is to be said of it."""
    base = hardware.overrides()
    todo: dict[str, Callable[[], str]] = {
        "machine": lambda: machine(hardware),
        "doctor": lambda: pddpo("doctor", "--deep").strip().splitlines()[-1],
        "placement": lambda: placed(hardware),
    }
    for stage in STAGES:
        todo[f"vLLM, {stage}"] = lambda stage=stage: train(folder / stage, *base, f"trainer.engine={stage}")  # type: ignore[misc]
    todo["transformers, torch"] = lambda: train(folder / "transformers", *base, "rollout.engine=transformers")
    todo["killed and resumed, zero2"] = lambda: kill_and_resume(folder / "killed", [*base, "trainer.engine=zero2"])
    todo["weights natively"] = lambda: train(folder / "native", *base, "rollout.delivery=native")
    if model is not None:
        name = f"gpu/o-pd-dpo-{hardware.gpus}"
        todo[f"{name}, first round"] = lambda: pddpo(
            *("train", name, f"model.reference={model}", "rounds=1", "--run", folder / "7b", "--go-on"),
            deadline_s=ROUND_7B_S,
        )[-200:]
    return todo


def done(step: str, work: Callable[[], str]) -> Row:
    began = time.monotonic()
    try:
        said, passed = work(), True
    except Exception as error:
        said, passed = f"{type(error).__name__}: {error}".splitlines()[0], False
    return Row(step, passed, time.monotonic() - began, said)


def table(hardware: Hardware, rows: Sequence[Row]) -> str:
    """In Markdown."""
    kind = "REHEARSAL ON CPUs, no GPU took part: " if hardware.rehearse else ""
    head = f"{kind}{hardware.gpus} GPUs on {hardware.nodes} nodes, {datetime.date.today()}, {platform.platform()}"
    lines = [f"| {row.step} | {'passed' if row.passed else 'NOT'} | {row.seconds:.0f} | {row.said} |" for row in rows]
    return "\n".join([head, "", "| step | | seconds | |", "|---|---|---|---|", *lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--gpus", type=int, choices=(1, 4, 8), default=1, help="on each node")
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--address", help="of a Ray cluster; without it one is started on this machine")
    parser.add_argument("--model", help="folder of a 7B model, for the first round of gpu/o-pd-dpo-N")
    parser.add_argument("--rehearse", action="store_true", help="on CPUs; Ray is told of GPUs that are not there")
    parser.add_argument("--only", nargs="+", help="steps by name")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="an empty or new folder")
    chosen: Any = parser.parse_args(arguments)
    hardware = Hardware(chosen.gpus, chosen.nodes, chosen.address, chosen.rehearse)
    short = lacking(hardware)
    if short is not None:
        print(f"make gpu: {short}", file=sys.stderr)
        return 2
    chosen.out.mkdir(parents=True, exist_ok=True)
    todo, rows = steps(hardware, chosen.out, chosen.model), list[Row]()
    for step, work in todo.items():
        if chosen.only is None or step in chosen.only:
            rows.append(done(step, work))
            print(f"{rows[-1].step}: {'passed' if rows[-1].passed else 'NOT'}: {rows[-1].said}", flush=True)
            # after every step, so that what broke off has its table too
            (chosen.out / "table.md").write_text(table(hardware, rows), encoding="utf-8")
    print(f"\n{table(hardware, rows)}\n{chosen.out / 'table.md'}")
    return 0 if rows and all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
