"""Does it pay to choose what people are asked? (lab/studies/active_choice/registered.yaml)

python -m lab.studies.active_choice.run run       # 20 worlds, two places, two cells, two arms; a broken study continues
python -m lab.studies.active_choice.run table     # the table of docs/exploration.md from what is there
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.exploration.played import Arm, Cell, played
from lab.studies.exploration.run import with_interval
from lab.studies.exploration.worlds import GROUNDS
from lab.studies.study import FOLDER, Results, command, keep, known, registration, seeds_between
from pddpo_ray.records import Array

RESULTS = FOLDER / "active_choice" / "results.json"


def registered() -> Mapping[str, Any]:
    """What was registered."""
    return registration("active_choice")


def run(out: Path) -> None:
    """Both arms of a world and cell, the twin first."""
    wanted = registered()
    arms = {name: Arm("elliptical", keep=wanted["keep"], keep_random=share) for name, share in wanted["arms"].items()}
    for place in sorted(wanted["places"], reverse=True):
        for seed in seeds_between(wanted["seeds"]):
            for name, setting in wanted["cells"].items():
                key, cell = f"{place}/{name}/{seed}", Cell(**setting)
                if key in known(out):
                    continue
                ground = GROUNDS[place](seed, cell.rare, cell.beta)
                done = {arm: asdict(played(ground, cell, how, seed)) for arm, how in arms.items()}
                keep(out, key, done)


def lower(results: Results, place: str, cell: str) -> dict[int, float]:
    """How much lower the active arm's gap is than the uniform one's, by world."""
    found = {seed: results.get(f"{place}/{cell}/{seed}") for seed in seeds_between(registered()["seeds"])}
    return {
        seed: row["uniform"]["gaps"][-1] - row["active"]["gaps"][-1] for seed, row in found.items() if row is not None
    }


def deciding(results: Results) -> Array:
    """The registered statistic's values: on worlds of the twin, means over both cells. -> [n]"""
    cells = [lower(results, "twin", cell) for cell in registered()["cells"]]
    return np.array([np.mean([one[seed] for one in cells]) for seed in cells[0] if all(seed in one for one in cells)])


def table(results: Results) -> str:
    """Gaps of both arms, and how much lower the active one's is."""
    lines = ["| where | cell | worlds | uniform | active | lower by | labels |", "|---" * 7 + "|"]
    for place in registered()["places"]:
        for cell in registered()["cells"]:
            rows = [results[f"{place}/{cell}/{seed}"] for seed in lower(results, place, cell)]
            if not rows:
                continue
            uniform, active = (np.mean([row[arm]["gaps"][-1] for row in rows]) for arm in ("uniform", "active"))
            apart = with_interval(np.array(list(lower(results, place, cell).values())))
            labels = np.mean([one["labels"] for row in rows for one in row.values()])
            lines.append(f"| {place} | {cell} | {len(rows)} | {uniform:.3f} | {active:.3f} | {apart} | {labels:,.0f} |")
    return "\n".join([*lines, "", f"Deciding: {with_interval(deciding(results))}, {len(deciding(results))} worlds"])


if __name__ == "__main__":
    command(str(__doc__), RESULTS, run, table)
