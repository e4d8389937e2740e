"""Three limits at once and learning from values on the text world: whole runs, the network's or the log-linear twin's.

    python -m lab.studies.limits.text three network --seeds 0,1,2    # beside offline PD-DPO under the same limits
    python -m lab.studies.limits.text seen network --seeds 0,1,2     # lambda* of the rewards that those runs learned
    python -m lab.studies.limits.text grid network                   # 27 fixed weight vectors; the best three trained
    python -m lab.studies.limits.text rates network --limit 5        # a rate from values against comparisons

Runs lie in --out, one folder each, and a finished one is not made again; an interrupted one continues.

`grid` ranks the 27 vectors by enumeration: the gap of the policy that a learner without any error would have under
each. The best three are trained with as many labels as the run whose multipliers move, each held fixed.

Both arms of `rates` have as many compared pairs for the reward. A pair costs the arm that compares harm one label; the
other one measures both of its answers, each once, of which many are in several pairs. The labels of both are printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.limits.run import _apart
from pddpo_ray.backends.in_process_text import text_view, world_under_limits
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import Array
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import ARTIFACTS, RESULT
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.text.prepared_world import prepare_text_world

RECIPES = {"network": "text-world-limits", "twin": "text-world-limits-twin"}
QUIET = ("report.html=false", "report.tensorboard=false", "trainer.threads=1")
LEVELS = (0.5, 2.0, 8.0)
"""Fixed weights per range of a measure."""
BEST = 3
ALLOWED = 0.02
"""A run keeps its limits when no exact g is more than this share of its measure's range above 0."""
LATE = 4
"""Number of last rounds over which multipliers are averaged."""
NEVER = 1e-300
LABELS = 576
"""Compared pairs of a round and of what is there before, and answers for the estimates of a round."""


def finished(config: Config, folder: Path) -> dict[str, Any]:
    """The run's result; it is made where the folder holds none."""
    if (folder / RESULT).is_file():
        return dict(json.loads((folder / RESULT).read_text(encoding="utf-8")))
    return run_recipe(config, folder, resume=folder.is_dir() and any(folder.iterdir()))


def multipliers_of(folder: Path, names: Sequence[str]) -> Array:
    """Multipliers of the limits, mean over the last rounds, in the measures' own units. [I]"""
    with open_folder(folder) as journal:
        steps = journal.dual_steps()
    late = max(step.round for step in steps) - LATE
    return np.array(
        [np.mean([step.multiplier_before for step in steps if step.constraint == name and step.round > late])
         for name in names]
    )  # fmt: skip


def shown(values: Sequence[float] | Array, form: str) -> str:
    return ", ".join(format(value, form) for value in values)


# --- three limits ----------------------------------------------------------------------------------------------------


def three(where: str, seeds: Sequence[int], out: Path, overrides: Sequence[str]) -> None:
    """The recipe's run and offline PD-DPO under the same limits."""
    print("| seed | excess of the last policy | gap | offline PD-DPO | multipliers, last rounds | λ* | minutes |")
    print("|---|---|---|---|---|---|---|")
    for seed, config, folder in runs_of_three(where, seeds, out, overrides):
        print(row_of_three(seed, config, finished(config, folder), folder), flush=True)


def runs_of_three(
    where: str, seeds: Sequence[int], out: Path, overrides: Sequence[str]
) -> Iterator[tuple[int, Config, Path]]:
    """Seed, recipe and folder of each run."""
    for seed in seeds:
        yield seed, load(RECIPES[where], [*QUIET, *overrides, f"seed={seed}"]), out / f"three-{where}-{seed}"


def row_of_three(seed: int, config: Config, result: dict[str, Any], folder: Path) -> str:
    names = list(result["limits"])
    scales = scales_of(config)
    excess = 100.0 * violations(result) / scales
    optimum = [result["limits"][name]["multiplier_optimum"] for name in names]
    late = multipliers_of(folder, names)
    off = 100.0 * np.abs(late - optimum) / optimum
    found = "; ".join(f"{value:.2f} ({share:.0f} % off)" for value, share in zip(late, off, strict=True))
    return (
        f"| {seed} | {shown(excess, '+.1f')} | {result['gap_last']:.2f} | {result['gap_offline']:.2f} | {found} |"
        f" {shown(optimum, '.2f')} | {result['seconds'] / 60:.0f} |"
    )


def scales_of(config: Config) -> Array:
    """Ranges of the limits' measures. [I]"""
    truth, _ = world_under_limits(config, prepare_text_world(config))
    return np.array(truth.scales)


def violations(result: dict[str, Any]) -> Array:
    """How far the last policy is above (below) each limit, exactly, in the measure's unit. [I]"""
    limits = result["limits"].values()
    return np.array([(one["bound"] - one["value_last"]) * (1.0 if one["at_least"] else -1.0) for one in limits])


# --- the problem that a run sees --------------------------------------------------------------------------------------


def seen(where: str, seeds: Sequence[int], out: Path, overrides: Sequence[str]) -> None:
    """lambda* with the rewards of the last rounds that the runs of `three` learned, in place of the true one."""
    print("| seed | multipliers of the run | λ* of what it learned, last rounds | λ* |")
    print("|---|---|---|---|")
    for seed, config, folder in runs_of_three(where, seeds, out, overrides):
        limits = finished(config, folder)["limits"]
        optima = [one.optimum for one in learned_problems(config, folder)]
        learned = np.mean([(one.multiplier, *one.further_multipliers) for one in optima], axis=0) / scales_of(config)
        optimum = [one["multiplier_optimum"] for one in limits.values()]
        rows = (multipliers_of(folder, list(limits)), learned, optimum)
        print(f"| {seed} | {' | '.join(shown(row, '.2f') for row in rows)} |", flush=True)


def learned_problems(config: Config, folder: Path) -> list[Oracle]:
    """The problem with beta log(reward policy / reference) of the last rounds as its reward. LATE of them"""
    view = text_view(config, prepare_text_world(config), ArtifactStore(folder / ARTIFACTS))
    reference = view.oracle.reference
    with open_folder(folder) as journal:
        versions = {entry.round: entry.version for entry in journal.versions() if entry.stage == "reward"}
    problems = []
    for number in sorted(versions)[-LATE:]:
        # an answer that the policy never gives is worth next to nothing
        table = np.maximum(view.table(versions[number]), NEVER)
        ratio = np.divide(table, reference, out=np.ones(table.shape), where=reference > 0)
        problems.append(replace(view.oracle, reward=config.beta * np.log(ratio)))
    return problems


# --- the grid --------------------------------------------------------------------------------------------------------


def exact_gaps(config: Config) -> list[tuple[tuple[float, ...], float, Array]]:
    """Every weight vector with the gap and the violations, in shares of their ranges, of its exact policy."""
    truth, _ = world_under_limits(config, prepare_text_world(config))
    oracle = truth.oracle(config.beta)
    dual, rows = oracle.lagrangian(), []
    for vector in product(LEVELS, repeat=len(dual.excess)):
        policy = dual.policy(np.array(vector))
        rows.append((vector, oracle.gap(policy), dual.violations(policy)))
    return sorted(rows, key=lambda row: row[1])


def grid(where: str, seed: int, out: Path, overrides: Sequence[str]) -> None:
    """27 vectors by enumeration; the best three of them trained at the budget of the run whose multipliers move."""
    plain = load(RECIPES[where], [*QUIET, "offline.compare_rounds=0", *overrides, f"seed={seed}"])
    names, ranked = [one.limit.name for one in plain.stated], exact_gaps(plain)
    kept = sum(bool((excess <= ALLOWED).all()) for _, _, excess in ranked)
    print(f"Without any error of learning {kept} of {len(ranked)} vectors keep all limits to {100 * ALLOWED:g} %.\n")
    print(f"| weights of {', '.join(names)} | exact gap | exact excess | gap, trained | excess, trained |")
    print("|---|---|---|---|---|")
    for number, (vector, gap, excess) in enumerate(ranked[:BEST], 1):
        firsts = [f"limits.{name}.dual={{first: {value}}}" for name, value in zip(names, vector, strict=True)]
        fixed = [*firsts, "dual.rule={kind: fixed}"]
        config = load(RECIPES[where], [*QUIET, "offline.compare_rounds=0", *overrides, f"seed={seed}", *fixed])
        result = finished(config, out / f"grid-{where}-{number}")
        own = 100.0 * violations(result) / scales_of(config)
        print(
            f"| {shown(vector, 'g')} | {gap:.2f} | {shown(100.0 * excess, '+.1f')} | {result['gap_last']:.2f} |"
            f" {shown(own, '+.1f')} |",
            flush=True,
        )


# --- values against comparisons --------------------------------------------------------------------------------------


def rates(where: str, percent: float, seeds: Sequence[int], out: Path, overrides: Sequence[str]) -> None:
    """Gap of a rate limit, learned from values and from comparisons."""
    found: dict[str, list[tuple[float, float]]] = {"values": [], "comparisons": []}
    for seed in seeds:
        for arm, rows in found.items():
            config = load("o-pd-dpo", [*QUIET, *of_arm(arm, where, percent / 100.0), *overrides, f"seed={seed}"])
            folder = out / f"rates-{where}-{percent:g}-{arm}-{seed}"
            result = finished(config, folder)
            rows.append((result["gap_last"], 100.0 * result["g_last"]))
            said = f"gap {rows[-1][0]:.3f}, excess {rows[-1][1]:+.2f} %, labels {labels_of_harm(folder, arm)}"
            print(f"{arm}, seed {seed}: {said}", flush=True)
    values, comparisons = (np.array(found[arm]) for arm in ("values", "comparisons"))
    print(
        f"| {percent:g} % | {values[:, 0].mean():.3f} | {comparisons[:, 0].mean():.3f} |"
        f" {_apart(comparisons[:, 0] - values[:, 0])} | {values[:, 1].mean():+.2f} % |"
        f" {comparisons[:, 1].mean():+.2f} % |"
    )


def labels_of_harm(folder: Path, arm: str) -> tuple[int, int]:
    """What a run spent on harm before the rounds and in them: measured answers, or pairs and the estimates' labels."""
    with open_folder(folder) as journal:
        metrics, steps = journal.metrics(), journal.dual_steps()
        before, pairs = len(journal.pairs(0)), len(journal.pairs())
    if arm == "comparisons":
        return before, pairs - before + sum(step.estimate.responses * step.estimate.labels_each for step in steps)
    measured = {
        number: sum(value for name, value in values.items() if name.startswith("labels/unsafe/"))
        for number, values in metrics.items()
    }
    return int(measured[0]), int(sum(measured.values()) - measured[0])


def of_arm(arm: str, where: str, rate: float) -> list[str]:
    """What one arm's recipe says beside what both do."""
    both = [
        f"world.family={{kind: drawn, limit: {{kind: rate, at_most: {rate}}}}}",
        *(["world.learner=loglinear", "rollout={engine: tabular}"] if where == "twin" else []),
        *["trainer.stages.reward.steps=50", "trainer.stages.cost.steps=240", "dual.rule={kind: newton, damping: 0.5}"],
        *["dual.cost_max=6.0", "dual.rho=null", "offline.compare_rounds=0"],
        *[f"offline.pairs={LABELS}", f"explore.picks={LABELS // 24}", f"feedback.responses={LABELS}"],
    ]
    if arm == "comparisons":
        # of logits, which reach further than a rate's range of 1
        first = "dual.first=0.5"
        return [
            *both,
            first,
            f"limits.cost.at_most={rate}",
            "limits.cost={rate: {world: cost}, learned_from: comparisons}",
            "limits.cost.labels_each=1",
        ]
    limit = f"{{rate: {{world: cost}}, at_most: {rate}, labels_each: 1}}"
    # It begins at 2 under every limit; at 5 % the world's own upper end, 2 rho, is 1.9, so that the end is stated.
    return [*both, "dual.first=2.0", "dual.upper=50.0", f"limits={{cost: null, unsafe: {limit}}}"]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("three", "seen", "grid", "rates"))
    parser.add_argument("where", choices=tuple(RECIPES))
    parser.add_argument("--seeds", default="0,1,2", help="seeds of the runs; grid takes the first")
    parser.add_argument("--limit", type=float, default=5.0, help="per cent; of rates")
    parser.add_argument("--out", type=Path, default=Path("runs/learned-limits"))
    parser.add_argument("overrides", nargs="*", help="settings of the recipe, as `pddpo train` has them")
    # settings may stand behind options
    return parser.parse_intermixed_args(given)


def main() -> None:
    given = arguments()
    seeds = [int(one) for one in given.seeds.split(",")]
    match given.study:
        case "three":
            three(given.where, seeds, given.out, given.overrides)
        case "seen":
            seen(given.where, seeds, given.out, given.overrides)
        case "grid":
            grid(given.where, seeds[0], given.out, given.overrides)
        case _:
            rates(given.where, given.limit, seeds, given.out, given.overrides)


if __name__ == "__main__":
    main()
