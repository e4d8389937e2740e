"""`make gpu`: what a machine with GPUs has to show, step by step, as a table to paste.

    python -m bench.gpu                             # one card, within ten minutes
    python -m bench.gpu --gpus 4                    # this machine, or one node of a cluster
    python -m bench.gpu --gpus 8 --nodes 2 --address auto --out /mnt/pddpo/gpu --journal postgresql://pddpo@db/pddpo
    python -m bench.gpu --gpus 8 --model FOLDER     # and the first round of gpu/o-pd-dpo-8 with a 7B model
    python -m bench.gpu --gpus 4 --rehearse         # on CPUs, beside GPUs that Ray is only told of

Two nodes are those of a Ray cluster that is up, seen from its head, which needs no GPU. What the steps write lies on a
share of all nodes, where a journal cannot be in SQLite. A rehearsal starts its own nodes and trains a small model.
Faults come first, figures next. Every step is a process with a deadline of its own, and none goes on when the minutes
are over (`--minutes`). Exit code 0: all passed; 1: a step did not or was not begun; 2: the machine lacks something.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu_runs import REAL, REAL_REHEARSED, kill_and_resume, pddpo, printed, run, smollm2, train
from pddpo_ray.config import RayCluster, load
from pddpo_ray.errors import UserError
from pddpo_ray.journal.filesystems import demand_local
from pddpo_ray.plan.resources import bundles
from pddpo_ray.storage.whole_files import JOURNAL
from tools import small_runs

STAGES = ("torch", "zero1", "zero2", "zero3")
REHEARSED = [
    *[*small_runs.GPU, "trainer.engine=zero3", "trainer.workers=2", "trainer.threads=1", "rollout.engine=vllm"],
    *["rollout.engines=2", "rollout.max_model_len=192"],
]
"""A 7B recipe at the size of seconds, with a model and scorers that are trained for it."""
CARD = "launches and peaks"
FIGURES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    CARD: (["card"], ["card"]),
    "16 pairs a step, 135M, adapters": (
        ["step", "--shape", "135m", "--steps", "60"],
        ["step", "--shape", "tiny", "--pairs", "4", "--steps", "4"],
    ),
    "16 pairs a step, 1.1B, adapters": (["step", "--shape", "1b", "--steps", "40"], []),
    "16 pairs a step, 7B, adapters": (["step", "--shape", "7b", "--steps", "6", "--sides", "ours"], []),
    "frozen features and a head, 135M": (
        ["features", "--pairs", "2400"],
        ["features", "--shape", "tiny", "--pairs", "40"],
    ),
}
"""Arguments of `bench.gpu_figures` on a card, and those of its rehearsal, where there is one."""
CPUS = 16
"""Of each declared node: more than any recipe's share of a node."""
STEP_S, REHEARSED_S, ROUND_7B_S = 300.0, 1800.0, 6 * 3600.0
MINUTES = 10.0
"""Of all steps, on one card with no 7B model."""


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
    journal: str | None = None

    @property
    def minutes(self) -> float:
        """What all steps may take where nothing is said of it."""
        return MINUTES if (self.gpus, self.nodes, self.rehearse) == (1, 1, False) else math.inf

    @property
    def words(self) -> str:
        return f"{self.gpus} GPUs on " + ("one node" if self.nodes == 1 else f"each of {self.nodes} nodes")

    def overrides(self) -> list[str]:
        """One rank and one engine for each GPU: side by side on one, each on GPUs of its own on several."""
        if self.rehearse:
            small = ["trainer.workers=2", f"rollout.engines={self.nodes}", "trainer.threads=1", "model.device=cpu"]
            return [*small, *self.where()]
        ranks = max(1, self.gpus * self.nodes // 2)
        shared = [] if self.gpus * self.nodes > 1 else ["cluster.layout=time-shared"]
        return [
            *[f"trainer.workers={ranks}", f"rollout.engines={ranks}", "model.device=cuda"],
            *[*shared, *self.where()],
        ]

    def of_recipe(self, name: str) -> list[str]:
        """A recipe for the GPUs of one node, on all nodes: as many times its ranks and engines."""
        if self.nodes == 1:
            return self.where()
        config = load(name, check_files=False)
        ranks, engines = config.trainer.workers, config.rollout.engines
        return [f"trainer.workers={self.nodes * ranks}", f"rollout.engines={self.nodes * engines}", *self.where()]

    def where(self) -> list[str]:
        """The cluster and the journal."""
        where = ["cluster.placement=spread"] if self.nodes > 1 else []
        where += [f"cluster.address={self.address}"] if self.address else []
        return where + ([f"journal={self.journal}"] if self.journal else [])


def lacking(hardware: Hardware, out: Path) -> str | None:
    """What the machine or the cluster does not have, in one line."""
    if hardware.rehearse:
        return None
    if hardware.nodes > 1 and hardware.address is None:
        return f"{hardware.nodes} nodes need a Ray cluster that is up: start it, then add --address auto"
    try:
        if hardware.nodes > 1 and hardware.journal is None:
            demand_local(out / JOURNAL)
        if hardware.address is None:
            return lacking_here(hardware.gpus)
        with cluster_of(hardware):
            nodes = gpus_of_nodes()
    except UserError as error:
        return str(error)
    if sum(gpus >= hardware.gpus for gpus in nodes) < hardware.nodes:
        has = ", ".join(f"{gpus:g}" for gpus in nodes)
        return f"this needs {hardware.words}; the nodes of the cluster have {has}"
    return None


def lacking_here(gpus: int) -> str | None:
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found >= gpus:
        return None
    return f"this needs {gpus} CUDA devices on each node, and torch sees {found} here: run it where they are"


@contextmanager
def cluster_of(hardware: Hardware) -> Iterator[None]:
    """Ray, connected to from this process: the cluster at the address, or one of this machine. Raises UserError."""
    import ray

    from actors.session import ray_session

    if hardware.address is not None or not hardware.rehearse:
        with ray_session("make-gpu", address=hardware.address):
            yield
        return
    ray.init(
        num_cpus=CPUS, num_gpus=hardware.gpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    try:
        yield
    finally:
        ray.shutdown()


def gpus_of_nodes() -> list[float]:
    """Of every living node, the most first."""
    import ray

    return sorted((node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]), reverse=True)


@contextmanager
def declared(hardware: Hardware) -> Iterator[Hardware]:
    """Several nodes of a rehearsal, on this machine, with GPUs that Ray is only told of; one node needs no cluster."""
    if not hardware.rehearse or hardware.nodes == 1 or hardware.address is not None:
        yield hardware
        return
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(hardware.nodes):
            cluster.add_node(num_cpus=CPUS, num_gpus=hardware.gpus)
        cluster.wait_for_nodes()
        yield replace(hardware, address=cluster.address)
    finally:
        cluster.shutdown()


def placed(hardware: Hardware) -> str:
    """Every recipe's processes on nodes with so many GPUs, as Ray places them."""
    import ray

    from actors.placement import check_cluster, reserve

    names = [f"gpu/{method}-{hardware.gpus}" for method in ("pd-dpo", "pd-dpo-adalag", "o-pd-dpo")]
    used = 0
    with cluster_of(hardware):
        for name in names:
            config = load(name, hardware.of_recipe(name), check_files=False)
            assert isinstance(config.cluster, RayCluster)
            parts = {bundle.part: bundle for bundle in bundles(config, "cuda")}
            check_cluster(list(parts.values()))
            groups = [
                reserve(parts[part], strategy=config.cluster.placement, deadline_s=120)
                for part in ("rollout", "trainer")
            ]
            tables = [ray.util.placement_group_table(group) for group in groups]
            used = max(used, len({node for one in tables for node in one["bundles_to_node_id"].values()}))
            for group in groups:
                ray.util.remove_placement_group(group)
    if used < hardware.nodes:
        raise UserError(f"engines and ranks were placed on {used} nodes of {hardware.nodes}")
    return f"{', '.join(names)}: engines and ranks have their GPUs; nodes taken: {used}"


def machine(hardware: Hardware) -> str:
    """The devices of every node."""
    if hardware.rehearse:
        return f"no GPU was looked at ({platform.processor() or platform.machine()}, {os.cpu_count()} cores)"
    if hardware.address is None:
        return devices()
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with cluster_of(hardware):
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
        look = ray.remote(num_cpus=0)(devices)
        told = [
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
            for node in nodes
        ]
        return "; ".join(ray.get(told, timeout=300))


def devices() -> str:
    """Of this machine."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return f"no nvidia-smi; torch {torch.__version__}"
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.strip().splitlines()
    return f"{len(lines)} x {lines[0]}; torch {torch.__version__}, CUDA {torch.version.cuda}"


def figure(hardware: Hardware, words: Sequence[str | Path], deadline_s: float) -> str:
    """Numbers of a figure, in words."""
    device = "cpu" if hardware.rehearse else "cuda"
    last = printed("bench.gpu_figures", *words, "--device", device, deadline_s=deadline_s).splitlines()[-1]
    return ", ".join(f"{name} {value:.4g}" for name, value in json.loads(last).items() if not isinstance(value, str))


def first_round(hardware: Hardware, folder: Path, model: str | None, deadline_s: float) -> str:
    """Of the recipe for so many GPUs; rehearsed with two ranks, two engines and a small model."""
    name = f"gpu/o-pd-dpo-{hardware.gpus}"
    overrides = ["rounds=1", *([f"model.reference={model}"] if model else [])]
    if not hardware.rehearse:
        return run(name, folder, [*overrides, *hardware.of_recipe(name)], deadline_s)
    own = ["cluster.cpus=4"] if hardware.address is None else []
    return run(name, folder, [*overrides, *REHEARSED, *own, *hardware.where()], deadline_s)


def real_round(hardware: Hardware, folder: Path, model: Path, deadline_s: float) -> str:
    """A round of SmolLM2 under a limit on its answers' length."""
    overrides = [f"model.reference={model}", *REAL, *hardware.overrides(), *(REAL_REHEARSED * hardware.rehearse)]
    return run("smollm2", folder, overrides, deadline_s)


@dataclass(frozen=True)
class Step:
    """What is to be said after at most so many seconds."""

    limit_s: float
    work: Callable[[float], str]


def steps(hardware: Hardware, folder: Path, model: str | None) -> dict[str, Step]:
    """All that is checked, what is most likely to break first."""
    base, limit = hardware.overrides(), REHEARSED_S if hardware.rehearse else STEP_S
    trained = {f"vLLM, {stage}": [f"trainer.engine={stage}"] for stage in STAGES}
    trained |= {"weights natively": ["rollout.delivery=native"], "transformers, torch": ["rollout.engine=transformers"]}
    if hardware.gpus > 1 and not hardware.rehearse:
        trained["vLLM, two GPUs an engine"] = ["rollout.tensor_parallel=2", "rollout.engines=1"]
    works = {name: partial(train, folder / name.replace(" ", "-"), [*base, *own]) for name, own in trained.items()}
    figures = {
        name: partial(figure, hardware, rehearsed if hardware.rehearse else on_card)
        for name, (on_card, rehearsed) in FIGURES.items()
        if rehearsed or not hardware.rehearse
    }
    todo: dict[str, Callable[[float], str]] = {
        "machine": lambda _: machine(hardware),
        CARD: figures[CARD],
        "placement": lambda _: placed(hardware),
        "vLLM, torch": works["vLLM, torch"],
        "vLLM, zero2": works["vLLM, zero2"],
        "weights natively": works["weights natively"],
        "an engine sleeps and wakes, 135M": partial(smollm2, folder, partial(_asleep, hardware)),
        "killed and resumed, zero2": partial(kill_and_resume, folder / "killed", [*base, *trained["vLLM, zero2"]]),
        "SmolLM2 under a limit on length, first round": partial(
            smollm2, folder, partial(real_round, hardware, folder / "real")
        ),
        **figures,
        **works,
        "doctor": lambda most: (
            f"{pddpo('doctor', '--deep', deadline_s=most).count('ok ')} checks of this machine passed"
        ),
    }
    found = {name: Step(limit, work) for name, work in todo.items()}
    if model is not None or hardware.rehearse:
        seven = REHEARSED_S if hardware.rehearse else ROUND_7B_S
        recipe = partial(first_round, hardware, folder / "recipe", model)
        found[f"gpu/o-pd-dpo-{hardware.gpus}, first round"] = Step(seven, recipe)
    return found


def _asleep(hardware: Hardware, model: Path, deadline_s: float) -> str:
    few = ["--pairs", "4"] * hardware.rehearse
    return figure(hardware, ["asleep", "--model", model, *few], deadline_s)


def done(name: str, step: Step, left_s: float) -> Row:
    """A step that has its own seconds, and at most those that are left to all."""
    began = time.monotonic()
    try:
        if left_s <= 0:
            raise UserError("not begun: the minutes are over")
        said, passed = step.work(min(step.limit_s, left_s)), True
    except Exception as error:
        said, passed = f"{type(error).__name__}: {error}".splitlines()[0], False
    return Row(name, passed, time.monotonic() - began, said)


def table(hardware: Hardware, rows: Sequence[Row]) -> str:
    """In Markdown."""
    kind = "REHEARSAL ON CPUs, no GPU took part: " if hardware.rehearse else ""
    head = f"{kind}{hardware.words}, {datetime.date.today()}, {platform.platform()}"
    lines = [f"| {row.step} | {'passed' if row.passed else 'NOT'} | {row.seconds:.0f} | {row.said} |" for row in rows]
    return "\n".join([head, "", "| step | | seconds | |", "|---|---|---|---|", *lines, ""])


def result(hardware: Hardware, rows: Sequence[Row]) -> dict[str, Any]:
    """What `bench.gpu_results` makes its table of."""
    card = "none: rehearsed on CPUs" if hardware.rehearse else f"{hardware.words}, {devices()}"
    software = f"torch {torch.__version__}, {platform.platform()}"
    told = [{"step": row.step, "passed": row.passed, "seconds": round(row.seconds), "said": row.said} for row in rows]
    return {"card": card, "date": str(datetime.date.today()), "software": software, "rows": told}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--gpus", type=int, choices=(1, 4, 8), default=1, help="on each node")
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--address", help="of a Ray cluster; without it one is started on this machine")
    parser.add_argument("--journal", help="URL of a PostgreSQL database, where --out is on a network share")
    parser.add_argument("--model", help="folder of a 7B model, for the first round of gpu/o-pd-dpo-N")
    parser.add_argument(
        "--minutes", type=float, help="for all steps (default: 10 on one card, no end on several or with --model)"
    )
    parser.add_argument("--rehearse", action="store_true", help="on CPUs; Ray is told of GPUs that are not there")
    parser.add_argument("--only", nargs="+", help="steps by name")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="an empty or new folder")
    chosen: Any = parser.parse_args(arguments)
    hardware = Hardware(chosen.gpus, chosen.nodes, chosen.address, chosen.rehearse, chosen.journal)
    short = lacking(hardware, chosen.out)
    if short is not None:
        print(f"make gpu: {short}", file=sys.stderr)
        return 2
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    minutes = chosen.minutes or (math.inf if chosen.model else hardware.minutes)
    end = time.monotonic() + 60 * minutes
    with declared(hardware) as ready:
        for name, step in steps(ready, chosen.out.absolute(), chosen.model).items():
            if chosen.only is None or name in chosen.only:
                rows.append(done(name, step, end - time.monotonic()))
                print(f"{rows[-1].step}: {'passed' if rows[-1].passed else 'NOT'}: {rows[-1].said}", flush=True)
                # after every step, so that what broke off has its table too
                (chosen.out / "table.md").write_text(table(hardware, rows), encoding="utf-8")
                (chosen.out / "rows.json").write_text(json.dumps(result(hardware, rows), indent=2), encoding="utf-8")
    print(f"\n{table(hardware, rows)}\n{chosen.out / 'table.md'}")
    return 0 if rows and all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
