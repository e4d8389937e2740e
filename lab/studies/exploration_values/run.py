"""Does exploration pay under a limit that is learned from values? (lab/studies/exploration_values/registered.yaml)

python -m lab.studies.exploration_values.run run  # 20 worlds in four cells, three arms each; a broken study continues
python -m lab.studies.exploration_values.run table     # the table of docs/exploration.md from what is there
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.comparison.ground import LIMIT, Bonus, Ground, fair_ground
from lab.studies.comparison.run import ARMS, OURS, Arm, learned
from lab.studies.exploration.run import holm, permutation_p, shown_p, with_interval
from lab.studies.study import FOLDER, Results, command, keep, known, registration, seeds_between
from pddpo_ray.records import Array

RESULTS = FOLDER / "exploration_values" / "results.json"
PRIMARY = ("proposals", "elliptical")
PAIRS = (("off", "elliptical"), PRIMARY, ("off", "proposals"))


def registered() -> Mapping[str, Any]:
    """What was registered."""
    return registration("exploration_values")


def arm_of(cell: Mapping[str, Any], bonus: Bonus) -> Arm:
    """O-PD-DPO as in lab.studies.comparison.run, choosing among a cell's candidates."""
    return replace(ARMS[OURS], bonus=bonus, picks=cell["picks"], candidates=cell["candidates"])


def played(ground: Ground, arm: Arm, seed: int) -> dict[str, Any]:
    """One run in plain numbers."""
    began, oracle = time.process_time(), ground.oracle
    made = learned(ground, arm, {}, seed)
    return {
        "gap": round(float(oracle.gap(made.last)), 6),
        "rate": round(float(oracle.expectations(made.last, oracle.cost)), 6),
        "labels": made.labels,
        "seconds": round(time.process_time() - began, 2),
    }


def run(out: Path) -> None:
    """All arms of a world and cell, in the registered order."""
    for name, seed in registered_worlds():
        key, cell = f"{name}/{seed}", registered()["cells"][name]
        if key in known(out):
            continue
        ground = fair_ground(seed, cell["rare"])
        done = {bonus: played(ground, arm_of(cell, bonus), seed) for bonus in registered()["arms"]}
        keep(out, key, done)


def registered_worlds() -> Iterator[tuple[str, int]]:
    """(cell, seed) in the registered order."""
    for cells in (("deep", "wide"), ("needle", "today")):
        yield from ((cell, seed) for seed in seeds_between(registered()["seeds"]) for cell in cells)


def table(results: Results) -> str:
    """Gaps of the arms by cell, paired differences, and how many last policies are above the limit."""
    found = {cell: _rows(results, cell) for cell in registered()["cells"]}
    found = {cell: rows for cell, rows in found.items() if len(rows) > 1}
    missing = [1.0] * (len(registered()["cells"]) - len(found))
    chances = holm([*(permutation_p(_differences(rows, PRIMARY)) for rows in found.values()), *missing])
    heads = [*registered()["arms"], *(f"{first} − {second}" for first, second in PAIRS)]
    lines = [
        f"| cell | worlds | {' | '.join(heads)} | p of {PRIMARY[0]} − {PRIMARY[1]}, Holm | last policies over 5 % |"
        " labels |",
        "|---" * (len(heads) + 5) + "|",
    ]
    for (cell, rows), chance in zip(found.items(), chances, strict=False):
        means = " | ".join(f"{np.mean([row[arm]['gap'] for row in rows]):.3f}" for arm in registered()["arms"])
        apart = " | ".join(with_interval(_differences(rows, pair)) for pair in PAIRS)
        over = ", ".join(str(sum(row[arm]["rate"] > LIMIT for row in rows)) for arm in registered()["arms"])
        labels = np.mean([one["labels"] for row in rows for one in row.values()])
        lines.append(f"| {cell} | {len(rows)} | {means} | {apart} | {shown_p(chance)} | {over} | {labels:,.0f} |")
    return "\n".join(lines)


def _rows(results: Results, cell: str) -> list[Results]:
    keys = [f"{cell}/{seed}" for seed in seeds_between(registered()["seeds"])]
    return [results[key] for key in keys if key in results]


def _differences(rows: list[Results], pair: tuple[str, str]) -> Array:
    first, second = pair
    return np.array([row[first]["gap"] - row[second]["gap"] for row in rows])


if __name__ == "__main__":
    command(str(__doc__), RESULTS, run, table)
