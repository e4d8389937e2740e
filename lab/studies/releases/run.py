"""What runs release under a limit of 5 %, against the truth.

    python -m lab.studies.releases.run tables|twin [--worlds N]

Every world is a run of its own: it trains, tests its policies at its end, then its mixture. A finished run is a cell of
the file --out; a broken one resumes in its folder under --runs. The worlds from seed 3000 on had been used for nothing
before. A table takes some 20 seconds of CPU, a drawn text world with log-linear policies (twin) about two minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.limits.worlds import BETA, SCORE_MAX, table_world
from pddpo_lab.worlds.tabular.world import TabularWorld
from pddpo_lab.worlds.world_files import world_json
from pddpo_ray.certificates.ledger import read_ledger
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.storage.whole_files import JOURNAL, RESULT
from pddpo_ray.worlds.oracle import Oracle

RESULTS = Path(__file__).parent / "results.json"
SEEDS, LIMIT, NAME = 3000, 0.05, "unsafe"
RATIO = 1.15
"""The released policy's gap is at most this many times that of the best round that keeps the limit."""
QUIET = ("report.html=false", "report.tensorboard=false", "cluster={mode: in-process}")
"""A run without its page."""
TABLES = (
    f"limits={{cost: null, {NAME}: {{rate: {{world: cost}}, at_most: 5 %, labels_each: 1}}}}",
    *(f"dual.cost_max={SCORE_MAX:g}", "dual.margin=certificate"),
    *("dual.rule={kind: newton}", "offline.compare_rounds=0", "rounds=16", "feedback.responses=1024"),
    "certificate={certify: end, draws: 16000, batch: 2000, candidates: 4}",
)
"""The recipe `tabular` on a table file under a rate of 5 %."""


def table_file(seed: int, folder: Path) -> str:
    """A random table in which the limit binds, as a world file; offline pairs hold any answers."""
    world = table_world(seed, (LIMIT,))
    logits = np.log(world.costs[0]) - np.log1p(-world.costs[0])
    # the world's own limit is on the mean logit; that of the recipe takes its place
    oracle = Oracle(
        np.full(len(world.reward), 1.0 / len(world.reward)), world.reference, world.reward, logits, BETA, SCORE_MAX,
        cost_max=SCORE_MAX,
    )  # fmt: skip
    made = TabularWorld(oracle, world.reference, np.ones_like(world.reward, dtype=bool), offline_pairs=400)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"table-{seed}.json"
    path.write_text(json.dumps(world_json(made)))
    return str(path)


def on_table(seed: int, folder: Path) -> Config:
    return load("tabular", [f"world={{kind: tabular, path: {table_file(seed, folder)}}}", *TABLES, *QUIET])


def on_twin(seed: int, folder: Path) -> Config:
    return load("text-world-certified-twin", [f"world.seed={seed}", *QUIET])


STUDIES: dict[str, Callable[[int, Path], Config]] = {"tables": on_table, "twin": on_twin}
WORLDS = 10


# --- one run ----------------------------------------------------------------------------------------------------------


def measured(config: Config, run: Path) -> dict[str, Any]:
    """Trains, certifies and asks about the mixture, from the beginning or from where the folder's journal stops."""
    began = time.monotonic()
    if not (run / RESULT).exists():
        run_recipe(config, run, resume=(run / JOURNAL).exists())
    result = json.loads((run / RESULT).read_text())
    mixture = certify(config, run, "mixture", {}, config.certificate.draws)
    with open_folder(run) as journal:
        metrics = journal.metrics()
        exact = {number: (values["exact/gap_policy"], values["exact/g_policy"]) for number, values in metrics.items()
                 if "exact/g_policy" in values}  # fmt: skip
        estimates = {step.round: step.estimate.value for step in journal.dual_steps()}
        ledger = [
            {"policy": one.candidate.policy, "round": _round(one.candidate.policy), "state": one.state,
             "draws": one.count, "upper": one.findings[NAME].upper}
            for one in read_ledger(journal)
        ]  # fmt: skip
    last = max(exact)
    return {
        "released": result["outcome"]["round"],
        "gaps": {number: gap for number, (gap, _) in exact.items()},
        "excess": {number: g for number, (_, g) in exact.items()},
        "estimates": estimates,
        "ledger": ledger,
        "mixture": {"state": mixture.state, "upper": mixture.findings[NAME].upper, "draws": mixture.count,
                    "excess": metrics[last]["exact/g_mixture"], "gap": metrics[last]["exact/gap_mixture"]},
        "labels": {name: result[f"labels_{name}"] for name in ("used", "certificate", "safety", "pairs")},
        "gap_reference": result["gap_reference"],
        "multiplier_optimum": result["multiplier_optimum"],
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def _round(policy: str) -> int | None:
    return int(policy.rpartition("-")[2]) if "mixture" not in policy else None


def run_study(name: str, worlds: int, most: int, out: Path, runs: Path) -> dict[str, Any]:
    """Runs the worlds that are not in `out` yet, at most `most` of them (negative: all). -> the study's cells"""
    for seed in range(SEEDS, SEEDS + worlds):
        key = f"{name}/{seed}"
        if most != 0 and key not in _cells(out):
            most -= 1
            cell = measured(STUDIES[name](seed, runs / key), runs / key / "run")
            # another study may have written meanwhile
            out.write_text(json.dumps({**_cells(out), key: cell}, indent=1) + "\n")
            shutil.rmtree(runs / key)
    return {key: cell for key, cell in _cells(out).items() if key.startswith(f"{name}/")}


def _cells(out: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    return stored


@dataclass(frozen=True)
class Released:
    """A run's released policy; nan where none is."""

    released: int | None
    gap: float
    best: float
    """Gap of the best round that truly keeps the limit."""
    excess: float
    upper: float

    @property
    def ratio(self) -> float:
        return self.gap / self.best


def read(cell: Mapping[str, Any]) -> Released:
    kept = [cell["gaps"][number] for number, excess in cell["excess"].items() if excess <= 0.0]
    best, number = min(kept, default=np.nan), cell["released"]
    if number is None:
        return Released(None, np.nan, best, np.nan, np.nan)
    upper = next(line["upper"] for line in cell["ledger"] if line["round"] == number)
    by_round = {int(key): value for key, value in cell["gaps"].items()}
    excess = {int(key): value for key, value in cell["excess"].items()}
    return Released(number, by_round[number], best, excess[number], upper)


def table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per world, and what they say together."""
    lines = [
        "| world | released | certified at most | exact | tested | gap | best round that keeps it | ratio | labels |"
        " of them for certificates | mixture | its exact rate |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = {key: read(cell) for key, cell in cells.items()}
    for key, one in rows.items():
        labels, mixture = cells[key]["labels"], cells[key]["mixture"]
        own = (
            "none | | " if one.released is None else
            f"round {one.released} | {100 * one.upper:.2f} % | {100 * (LIMIT + one.excess):.2f} %"
        )  # fmt: skip
        gaps = (
            f"{one.gap:.3f} | {one.best:.3f} | {one.ratio:.2f}" if one.released is not None else f"| {one.best:.3f} | "
        )
        lines.append(
            f"| {key.rpartition('/')[2]} | {own} | {len(cells[key]['ledger']) - 1} | {gaps} | {labels['used']:,} |"
            f" {labels['certificate']:,} | {mixture['state']} | {100 * (LIMIT + mixture['excess']):.2f} % |"
        )
    return "\n".join([*lines, "", summary(list(rows.values()), [cell["mixture"] for cell in cells.values()])])


def summary(rows: Sequence[Released], mixtures: Sequence[Mapping[str, Any]]) -> str:
    released = [one for one in rows if one.released is not None]
    ratios = [one.ratio for one in released]
    certified = [one for one in mixtures if one["state"] == "certified"]
    above = sum(one.excess > 0 for one in released)
    said = f"{len(released)} of {len(rows)} worlds end with a release, {above} of them above the limit"
    if ratios:
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        said += (
            f". Ratio of gaps: median {middle:.2f} ({low:.2f} to {high:.2f} in the middle half), worst"
            f" {max(ratios):.2f}; at most {RATIO:g} in {sum(ratio <= RATIO for ratio in ratios)}"
        )
    wrong = sum(one["excess"] > 0 for one in certified)
    return f"{said}. Mixtures: {len(certified)} of {len(mixtures)} certified, {wrong} of them above the limit."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--worlds", type=int, default=WORLDS)
    parser.add_argument("--most", type=int, default=-1, help="stop after this number of runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/releases"))
    asked = parser.parse_args()
    print(table(run_study(asked.study, asked.worlds, asked.most, asked.out, asked.runs)))


if __name__ == "__main__":
    main()
