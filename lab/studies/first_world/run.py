"""O-PD-DPO, the same without its bonus, and offline PD-DPO on the text world, several seeds, one table.

    python -m lab.studies.first_world.run --seeds 0 1 2 --jobs 2

Every run is an ordinary `pddpo train` with a folder of its own under `--runs`; finished ones are read back, broken ones
continued, so the command can be stopped and given again. Offline PD-DPO gets the same number of rounds, at least as
many optimiser steps, and a search over learning rates and stopping times: the *true* gap picks its best run and, in
it, its best round among those that keep to their language, which favours it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pddpo_ray.config import load
from pddpo_ray.journal import read_journal

RECIPE = "text-world"
OFF_SUPPORT_MAX = 0.05
"""An offline round with more of its probability off the grammar is a broken fit, not a verdict on its data."""
AT_ROUND = {
    "gap_last": "exact/gap_policy",
    "f_last": "exact/f_policy",
    "g_last": "exact/g_policy",
    "off_support_last": "exact/off_support",
    "gap_mixture": "exact/gap_mixture",
    "slope_reward": "fit/slope_reward",
    "slope_cost": "fit/slope_cost",
}
"""What a run stopped at a round would have written into its result."""


@dataclass(frozen=True)
class Arm:
    """One way to run the recipe; `name` is its folder under the seed's."""

    name: str
    label: str
    overrides: tuple[str, ...]
    stops: bool = False
    """Judged at its best round instead of its last."""


def offline(reward_steps: int, reward_rate: float, cost_rate: float) -> Arm:
    """PD-DPO on the offline pairs with one reward fit and a cost fit per round."""
    return Arm(
        f"offline-{reward_steps}-{reward_rate:g}-{cost_rate:g}",
        f"{reward_steps} reward steps at {reward_rate:g}, cost rate {cost_rate:g}",
        (
            "algorithm=pd-dpo",
            f"trainer.stages.first_reward.steps={reward_steps}",
            f"trainer.stages.first_reward.learning_rate={reward_rate}",
            f"trainer.stages.first_cost.learning_rate={cost_rate}",
            f"trainer.stages.cost.learning_rate={cost_rate}",
        ),
        stops=True,
    )


def arms(online_reward_steps: int) -> tuple[Arm, ...]:
    """The online arms and the offline search; its longest reward fit takes as many steps as all online ones."""
    full = online_reward_steps
    return (
        Arm("o-pd-dpo", "O-PD-DPO", ()),
        Arm("no-bonus", "online, bonus off", ("explore.bonus=off",)),
        offline(full, 3e-4, 1e-4),
        offline(full // 4, 1e-3, 2e-4),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.studies.first_world.run", description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default=RECIPE, help="recipe of every run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/compare"), help="folder of all runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; each keeps about one core busy")
    parser.add_argument("--out", type=Path, help="write the table to this Markdown file too")
    parser.add_argument("overrides", nargs="*", help="key=value for every run, e.g. rounds=24")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    plan = [
        (seed, arm) for seed in options.seeds for arm in arms(_online_reward_steps(options.recipe, options.overrides))
    ]

    def run(job: tuple[int, Arm]) -> dict[str, Any]:
        seed, arm = job
        result = _run(options.runs / f"seed-{seed}" / arm.name, options.recipe, seed, arm, options.overrides)
        console.print(f"seed {seed} {arm.name}: gap {result['gap_last']:.3f}")
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(run, plan))
    table = markdown({(seed, arm.name): (arm, result) for (seed, arm), result in zip(plan, results, strict=True)})
    print(table)
    if options.out:
        options.out.write_text(table)
    return 0


def _online_reward_steps(recipe: str, overrides: Sequence[str]) -> int:
    """Optimiser steps that all reward fits of an online run take together."""

    config = load(recipe, overrides)
    return config.trainer.of_stage("first_reward").steps + (config.rounds - 1) * config.trainer.of_stage("reward").steps


def _run(folder: Path, recipe: str, seed: int, arm: Arm, overrides: Sequence[str]) -> dict[str, Any]:
    """Result of one arm, from its folder if it is finished, with what the journal adds to it."""
    if not (folder / "result.json").exists():
        command = [sys.executable, "-m", "pddpo_ray", "train", recipe, f"seed={seed}", f"world.seed={seed}"]
        command += [
            "cluster.mode=in-process",
            "trainer.threads=1",
            "offline.compare_rounds=0",
            *overrides,
            *arm.overrides,
        ]
        command += ["--run", str(folder), "--json"]
        if (folder / "journal.sqlite").exists():
            command.append("--resume")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    with read_journal(folder / "journal.sqlite") as journal:
        steps, metrics = journal.dual_steps(), journal.metrics()
    half = [step.multiplier_before for step in steps[len(steps) // 2 :]]
    gaps = {number: values["exact/gap_policy"] for number, values in metrics.items() if "exact/gap_policy" in values}
    if arm.stops:
        sound = [number for number in gaps if metrics[number]["exact/off_support"] <= OFF_SUPPORT_MAX]
        stop = min(sound or gaps, key=lambda number: gaps[number])
        result |= {"stop": stop} | {key: metrics[stop][name] for key, name in AT_ROUND.items()}
    below = [number for number in sorted(gaps) if gaps[number] < result["gap_covered_only"]]
    return result | {"multiplier_second_half": sum(half) / len(half), "below_covered_from": below[0] if below else None}


def markdown(results: dict[tuple[int, str], tuple[Arm, dict[str, Any]]]) -> str:
    """Two tables: the outcome per seed, and the offline search behind it."""
    seeds = sorted({seed for seed, _ in results})
    lines = [
        "| seed | method | gap | / offline | / covered-only | mixture's gap | below covered-only from round "
        "| f | g | multiplier, 2nd half (optimum) | off grammar | slope reward, cost |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    search = ["| seed | offline PD-DPO | best round | gap | g | off grammar |", "|---|---|---|---|---|---|"]
    for seed in seeds:
        own = {name: value for (number, name), value in results.items() if number == seed}
        tried = [value for name, value in own.items() if name.startswith("offline")]
        sound = [item for item in tried if item[1]["off_support_last"] <= OFF_SUPPORT_MAX] or tried
        best_arm, best = min(sound, key=lambda item: item[1]["gap_last"])
        covered = best["gap_covered_only"]
        share = covered / best["gap_last"]
        lines.append(f"| {seed} | covered-only optimum | {covered:.3f} | {share:.2f} | 1.00 | | | | | | | |")
        for label, result in (
            ("offline PD-DPO, best rate and round", best),
            ("online, bonus off", own["no-bonus"][1]),
            ("**O-PD-DPO**", own["o-pd-dpo"][1]),
        ):
            lines.append(_row(seed, label, result, best["gap_last"], covered))
        for arm, result in tried:
            mark = " (best)" if arm is best_arm else ""
            search.append(
                f"| {seed} | {arm.label}{mark} | {result['stop']} | {result['gap_last']:.3f} "
                f"| {result['g_last']:+.3f} | {result['off_support_last']:.3f} |"
            )
    return "\n".join([*lines, "", *search, ""])


def _row(seed: int, label: str, result: dict[str, Any], offline_gap: float, covered: float) -> str:
    gap, slopes = result["gap_last"], (result["slope_reward"], result["slope_cost"])
    return (
        f"| {seed} | {label} | {gap:.3f} | {gap / offline_gap:.2f} | {gap / covered:.2f} "
        f"| {result['gap_mixture']:.3f} | {result['below_covered_from'] or '-'} "
        f"| {result['f_last']:.3f} | {result['g_last']:+.3f} "
        f"| {result['multiplier_second_half']:.3f} ({result['multiplier_optimum']:.3f}) "
        f"| {result['off_support_last']:.3f} | {', '.join('-' if s is None else f'{s:.2f}' for s in slopes)} |"
    )


if __name__ == "__main__":
    sys.exit(main())
