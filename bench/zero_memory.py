"""Memory of a training step under ZeRO: planned, and tracked on each of two ranks of real DeepSpeed, on CPUs.

python -m bench.zero_memory           # writes bench/results/zero_memory.json, some minutes on two cores

torch's MemTracker counts what is alive in each rank, of tensors as DeepSpeed makes them: its flat copies and buckets
too. The shape is SmolLM2's with few layers, where embedding and head are most of the model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch

from bench.device import GIB
from bench.planned_memory import ON_RANKS, RANK, SHAPES, for_tracker, made, peak_of_two_steps, planned

RANKS, LAYERS = 2, 6
SHAPE = {**SHAPES["135M (SmolLM2)"], "num_hidden_layers": LAYERS}
DTYPE = torch.bfloat16


def tracked_rank(rank: int, stage: int, adapters: int | None) -> int:
    """The most bytes that are alive on this rank in the second of two steps, of two passes each."""
    import torch.distributed as dist
    from torch.distributed._tools.mem_tracker import MemTracker

    from actors.deepspeed_engine import DeepSpeedEngine
    from pddpo_ray.training.fit import Shard
    from pddpo_ray.training.passes.log_probs import ResponseScorer

    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model = made(SHAPE, adapters, DTYPE, device="cpu")
    scorer = ResponseScorer(model, "packed")
    with for_tracker(), MemTracker() as tracker:
        tracker.track_external(model)
        engine = DeepSpeedEngine(scorer, Shard(rank, RANKS), stage=stage, dtype="bfloat16")
        return peak_of_two_steps(tracker, engine, scorer)


def tracked(stage: int, adapters: int | None, port: int) -> int:
    """The larger of both ranks."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": RANKS, "OMP_NUM_THREADS": 1}
    processes = []
    for rank in range(RANKS):
        own = {**shared, "RANK": rank, "LOCAL_RANK": rank, "DS_ACCELERATOR": "cpu"}
        words = [sys.executable, "-m", "bench.zero_memory", str(rank), str(stage), str(adapters or 0)]
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        processes.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"ZeRO-{stage}: a rank ended with {[process.returncode for process in processes]}")
    return max(int(one.splitlines()[-1]) for one in said)


def main() -> None:
    found = []
    for place, (stage, adapters) in enumerate((stage, rank) for stage in (1, 2, 3) for rank in (None, RANK)):
        seen = tracked(stage, adapters, 29_700 + place)
        plan = planned(SHAPE, adapters, DTYPE, stage=stage, ranks=RANKS)
        found.append(
            {
                "stage": stage,
                "trained": "all" if adapters is None else f"adapters, rank {adapters}",
                "tracked": round(seen / GIB, 3),
                "planned": round(plan / GIB, 3),
                "ratio": round(plan / seen, 3),
            }
        )
        print(found[-1], flush=True)
        ON_RANKS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        numbers = [int(word) for word in sys.argv[1:]]
        print(tracked_rank(numbers[0], numbers[1], numbers[2] or None), flush=True)
    else:
        main()
