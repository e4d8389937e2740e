"""What labels that come late cost: gap and machine time of runs that continue without them (`feedback.rounds_late`).

    python -m lab.studies.late_labels.run run tables|twin    # plays the worlds; what is finished is not played again
    python -m lab.studies.late_labels.run table              # the table of docs/annotation.md

Labels come 0, 1 or 10 rounds late. All runs of a world share offline pairs, prompts and the randomness of labels, so
their gaps are compared in pairs. A round is the unit of time: people need as long for a round's labels as the rounds
that these are late. A run that waits holds its machines for K (1 + s) rounds, one that continues for K + s.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.studies.exploration.played import ARMS, Cell, Played, played
from lab.studies.exploration.worlds import GROUNDS
from pddpo_ray.theory.intervals import student_half_width

RESULTS = Path(__file__).parent
CELL = Cell(rare=0.012, beta=0.2, picks=2, candidates=32)
ROUNDS, LATE = 24, (0, 1, 10)
SEEDS = {"tables": range(6000, 6029), "twin": range(6000, 6010)}


def play(name: str) -> None:
    """Writes every world when its runs are finished."""
    out = RESULTS / f"{name}.json"
    known = json.loads(out.read_text()) if out.exists() else {}
    for seed in SEEDS[name]:
        if str(seed) in known:
            continue
        ground = GROUNDS[name](seed, CELL.rare, CELL.beta)
        runs = {late: played(ground, CELL, ARMS["shipped"], seed, rounds=ROUNDS, rounds_late=late) for late in LATE}
        known[str(seed)] = {str(late): _kept(run) for late, run in runs.items()}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("{\n" + ",\n".join(f'"{key}": {json.dumps(one)}' for key, one in known.items()) + "\n}\n")
        print(name, seed, {late: run.gaps[-1] for late, run in runs.items()}, flush=True)


def _kept(run: Played) -> dict[str, object]:
    return {"gaps": run.gaps, "violation": run.violation, "multiplier": run.multiplier, "optimum": run.optimum}


def rounds_of_waiting(late: int) -> int:
    """Rounds that a run which waits for its labels plays while one that continues plays all of them."""
    return (ROUNDS + late) // (1 + late)


def rows(name: str) -> list[str]:
    """Lines of the table."""
    worlds = list(json.loads((RESULTS / f"{name}.json").read_text()).values())
    lines = []
    for late in LATE:
        last = np.array([world[str(late)]["gaps"][-1] for world in worlds])
        prompt = np.array([world["0"]["gaps"][-1] for world in worlds])
        waited = np.array([world["0"]["gaps"][rounds_of_waiting(late) - 1] for world in worlds])
        lines.append(
            f"| {name} ({len(worlds)}) | {late} | {last.mean():.3f} | {_said(last - prompt) if late else '-'}"
            f" | {ROUNDS * (1 + late)} | {ROUNDS + late} | {rounds_of_waiting(late)}"
            f" | {_said(last - waited) if late else '-'} |"
        )
    return lines


def _said(differences: Sequence[float] | np.ndarray) -> str:
    """Mean of paired differences with its 95 % interval."""
    values = np.asarray(differences)
    half = student_half_width(float(values.std(ddof=1)) / len(values) ** 0.5, len(values))
    return f"{values.mean():+.3f} [{values.mean() - half:+.3f}, {values.mean() + half:+.3f}]"


HEADER = (
    "| world (n) | rounds late | gap of the last policy | against labels in time, same rounds | rounds of machine time,"
    " waiting | continuing | rounds of a run that waits, in that time | against it |\n|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("ground", nargs="?", choices=list(SEEDS))
    asked = parser.parse_args()
    if asked.action == "run":
        for name in [asked.ground] if asked.ground else SEEDS:
            play(name)
    else:
        print(HEADER)
        for name in SEEDS:
            print("\n".join(rows(name)))


if __name__ == "__main__":
    main()
