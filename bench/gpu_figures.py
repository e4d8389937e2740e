"""Figures of one card, each in a process of its own: a line of JSON and a sentence.

    python -m bench.gpu_figures card
    python -m bench.gpu_figures step --shape 135m --pairs 16 --pairs-file FILE.jsonl.gz
    python -m bench.gpu_figures features --device cpu --shape tiny
    python -m bench.gpu_figures asleep --model FOLDER

`step` is a whole fit of ours (adapters, the reward stage of PD-DPO) beside TRL's trainer on the same batches, weights
and reference, at equal losses; ours also without recorded passes. `bench.gpu` runs them all.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.device import GIB, wall_clock
from bench.limits import SHEET_FLOPS, real_tokens, training_flops
from bench.ratio import assert_same
from bench.reward_step import RewardStage, TrlSteps, reference_log_probs
from bench.workload import ONE, SEVEN, Shape, preference_rows, trained_weights
from pddpo_ray.contracts import FitSettings
from pddpo_ray.records import PairRow
from pddpo_ray.training import device as devices
from pddpo_ray.training.batches import minibatches, texts_of
from pddpo_ray.training.fit import FrozenColumns

SHAPES = {
    "tiny": Shape(512, 32, 2, 2, 2, 64),
    "135m": Shape(49_152, 576, 30, 9, 3, 1536, initial=0.04, device="cuda", dtype=torch.bfloat16),
    "1b": ONE,
    "7b": SEVEN,
}
"""By what people call them."""
SEED, RATE = 1, 1e-4
RECORDED = devices.RECORDED


def card(chosen: argparse.Namespace) -> dict[str, float]:
    """What the figures below are to be read against: the cost of a launch on this host, and this card's peaks."""
    device = chosen.device
    small, size = torch.zeros(1, device=device), 8192 if device == "cuda" else 512
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    store = torch.empty(2**30 if device == "cuda" else 2**20, dtype=torch.uint8, device=device)
    clock = wall_clock(device)
    launches = 10_000 if device == "cuda" else 100

    def repeated(times: int, call: Callable[[], object]) -> float:
        clock(call)
        return clock(lambda: [call() for _ in range(times)]) / times

    return {
        "microseconds a launch": 1e6 * repeated(1, lambda: [small.add_(1.0) for _ in range(launches)]) / launches,
        "bfloat16 TFLOP/s": 2 * size**3 / repeated(10, lambda: left @ right) / 1e12,
        "copied TB/s": 2 * store.numel() / repeated(10, store.clone) / 1e12,
    }


def step(chosen: argparse.Namespace) -> dict[str, float]:
    """Steps a second of TRL and of ours: as they are run, without recorded passes (eager), with compiled layers."""
    shape = replace(SHAPES[chosen.shape], device=chosen.device)
    rows = rows_of(chosen, shape.vocabulary, chosen.pairs * chosen.steps)
    base = reference_log_probs(shape, rows)
    work = training_flops(shape, rows, adapters=not chosen.full)
    found, losses = {"real tokens a pair": real_tokens(rows) / len(rows)}, []
    for side in chosen.sides:
        run = side_of(side, shape, rows, base, chosen)
        began = time.perf_counter()
        run(3)
        first = time.perf_counter() - began
        if chosen.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds, loss = timed(run, chosen)
        losses.append(loss)
        own = {
            "seconds of the first three steps": first,
            "ms a step": 1e3 * seconds / chosen.steps,
            "pairs/s": len(rows) / seconds,
            "MFU": work / seconds / SHEET_FLOPS,
            "loss": loss,
        }
        if chosen.device == "cuda":
            own["GiB"] = torch.cuda.max_memory_allocated() / GIB
        print(json.dumps({"side": side, **own}), file=sys.stderr, flush=True)
        if chosen.profile and side != "trl":
            print(profiled(run), file=sys.stderr, flush=True)
        found |= {f"{side}: {name}": value for name, value in own.items()}
        del run
    for loss in losses:
        assert_same(losses[0], loss, shape.tolerance)
    if "trl" in chosen.sides:
        found |= {f"{one} / trl": found[f"{one}: pairs/s"] / found["trl: pairs/s"] for one in chosen.sides}
    return found


Run = Callable[[int], float]
"""So many steps from the same weights. -> their mean loss at the end"""


def side_of(
    side: str, shape: Shape, rows: Sequence[PairRow], base: dict[Any, float], chosen: argparse.Namespace
) -> Run:
    """The steps of one side, on a model of its own."""
    policy, adapters = shape.trained(1, not chosen.full), not chosen.full
    if side == "trl":
        batches = [order.tolist() for order in minibatches(len(rows), chosen.steps, chosen.pairs, SEED)]
        peer, weights = TrlSteps(policy, rows, base, RATE), trained_weights(policy)
        return lambda steps: peer.run(weights, batches[:steps])
    settings = FitSettings(
        steps=chosen.steps,
        learning_rate=RATE,
        batch_pairs=chosen.pairs,
        micro_pairs=chosen.micro,
        support=0.0,
        max_grad_norm=1e9,
        warmup=0.0,
        schedule="constant",
    )
    stage = RewardStage(shape, rows, FrozenColumns(base, {}), settings)
    made = stage.steps_of(policy, adapters, side == "compiled")

    def ours(steps: int) -> float:
        devices.RECORDED = 0 if side == "eager" else RECORDED
        return made(steps)

    return ours


def timed(run: Run, chosen: argparse.Namespace) -> tuple[float, float]:
    """Seconds of all steps, and their loss."""
    losses: list[float] = []
    return wall_clock(chosen.device)(lambda: losses.append(run(chosen.steps))), losses[0]


def profiled(run: Run) -> str:
    """Where a few steps spend the device's time."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as seen:
        run(3)
    return str(seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=70))


def features(chosen: argparse.Namespace) -> dict[str, float]:
    """Texts a second through a frozen model, and seconds of the fit of a head on them."""
    from pddpo_ray.scoring.head_fits import features_of, fit_head
    from pddpo_ray.scoring.held_out import ScoreRow
    from pddpo_ray.training.models.score_model import ScoreModel

    shape = replace(SHAPES[chosen.shape], device=chosen.device)
    rows = rows_of(chosen, shape.vocabulary, chosen.pairs)
    model = ScoreModel(shape.build(0).model, "reward", bias=True).to(device=chosen.device, dtype=shape.dtype)
    texts = list(dict.fromkeys(texts_of(rows)))
    score_rows = [ScoreRow(row.prompt, row.chosen, row.rejected) for row in rows]
    found = {"texts": float(len(texts)), "tokens a text": sum(len(p) + len(a) for p, a in texts) / len(texts)}
    clock = wall_clock(chosen.device)
    known: dict[Any, Any] = {}
    for name in ("first", "second"):
        with tempfile.TemporaryDirectory() as folder:
            read = partial(features_of, model, texts, Path(folder), lambda _: None)
            found[f"{name} pass: texts/s"] = len(texts) / clock(lambda read=read: known.update(read()))
    most = len(rows) * 3 // 4
    found["head: seconds"] = clock(lambda: fit_head(model, known, score_rows[:most], score_rows[most:]))
    return found


def asleep(chosen: argparse.Namespace) -> dict[str, float]:
    """An engine that shares its card samples, sleeps, wakes and says the same: its speed, and what sleep gives back.

    On a CPU an engine does not sleep, and nothing is given back.
    """
    from pddpo_ray.records import Decoding, PolicyVersion, Prompt
    from pddpo_ray.rollout.vllm_engine import VllmEngine, VllmSettings
    from pddpo_ray.storage.artifacts import ArtifactStore

    on_card, folder = chosen.device == "cuda", chosen.model.absolute()
    dtype = "bfloat16" if on_card else "float32"
    settings = VllmSettings(max_model_len=256, max_sequences=chosen.pairs, dtype=dtype, sleeps=on_card, gpu_memory=0.3)
    began = time.perf_counter()
    engine = VllmEngine("rollout-0", folder, ArtifactStore(folder.parent), settings)
    found = {"seconds to start": time.perf_counter() - began}
    engine.deliver(PolicyVersion(0, "reference", "", folder.name))
    asked = [Prompt(f"{place}", tuple(range(1000, 1032)), "") for place in range(chosen.pairs)]
    clock, said = wall_clock(chosen.device), []
    for part in ("first", "second"):
        seconds = clock(lambda: said.append(engine.sample(asked, range(chosen.pairs), 1, Decoding(max_tokens=96))))
        found[f"{part}: tokens/s"] = sum(len(draw[0]) for (draw,) in said[-1]) / seconds
        if part == "first":
            before = free_gib(on_card)
            found["seconds to sleep"] = clock(engine.sleep)
            found["GiB given back"] = free_gib(on_card) - before
            found["seconds to wake"] = clock(engine.wake)
    if [draw[0] for (draw,) in said[0]] != [draw[0] for (draw,) in said[1]]:
        raise SystemExit("the engine woke and sampled other answers from the same seeds")
    engine.close()
    return found


def free_gib(on_card: bool) -> float:
    return torch.cuda.mem_get_info()[0] / GIB if on_card else 0.0


def rows_of(chosen: argparse.Namespace, vocabulary: int, count: int) -> list[PairRow]:
    """The first pairs of a file, by the shipped byte-level words; without one those that ship with the package."""
    if chosen.pairs_file is None:
        own = preference_rows(vocabulary, count)
        return [replace(own[place % len(own)], id=f"{place}") for place in range(count)]
    from bench.workload import _tokenizer

    words = _tokenizer(8192)
    made: list[PairRow] = []
    with gzip.open(chosen.pairs_file, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            prompt, better, worse = (
                tuple(words.encode(row[name]).ids)[:most]
                for name, most in (("prompt", 512), ("chosen", 383), ("rejected", 383))
            )
            made.append(PairRow(f"{len(made)}", prompt, (*better, 2), (*worse, 2)))
            if len(made) == count:
                break
    return made


FIGURES = {"card": card, "step": step, "features": features, "asleep": asleep}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_figures", description=__doc__)
    parser.add_argument("figure", choices=sorted(FIGURES))
    parser.add_argument("--shape", choices=sorted(SHAPES), default="135m")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--pairs", type=int, default=16, help="of a step; of all, for features; questions, for asleep")
    parser.add_argument("--micro", type=int, help="pairs of a pass")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--full", action="store_true", help="all weights are trained")
    parser.add_argument("--sides", nargs="+", choices=("trl", "ours", "eager", "compiled"), default=["trl", "ours"])
    parser.add_argument("--pairs-file", type=Path, help="JSON lines with prompt, chosen, rejected, gzipped")
    parser.add_argument("--model", type=Path, help="folder of the model, for asleep")
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args(arguments)
    print(json.dumps({"figure": chosen.figure, "shape": chosen.shape} | FIGURES[chosen.figure](chosen)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
