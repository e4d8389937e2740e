"""How to split the labels of a run between estimate and pairs, under a limit on the mean cost.

    python -m lab.studies.label_economy.run run       # 12 worlds of the twin, 11 runs each; a broken study continues
    python -m lab.studies.label_economy.run table     # the table of docs/exploration.md from what is there

Registered in lab/studies/label_economy/registered.yaml. Under a limit on a rate: `lab.studies.label_splits.run`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.exploration.played import ARMS, PROMPTS, ROUNDS, Cell, Estimated, played
from lab.studies.exploration.run import with_interval
from lab.studies.exploration.worlds import GROUNDS
from lab.studies.study import FOLDER, Results, command, keep, known, registration, seeds_between

RESULTS = FOLDER / "label_economy" / "results.json"
LEAST = 32
"""Candidates of a prompt, at least; text-world's 24 picks have that number."""


def registered() -> Mapping[str, Any]:
    """What was registered."""
    return registration("label_economy")


def spent(total: int, share: float, labels_each: int) -> tuple[Estimated, Cell]:
    """A round's estimate, which takes `share` of its labels, and its picks; a pair takes two: reward and cost."""
    wanted = registered()
    of_a_round = (total - 2 * wanted["pairs_before"]) / ROUNDS
    responses = round(share * of_a_round / labels_each)
    picks = round((of_a_round - responses * labels_each) / (2 * PROMPTS))
    candidates = max(LEAST, math.ceil(picks * 4 / 3))
    return Estimated(responses, labels_each), Cell(wanted["rare"], wanted["beta"], picks, candidates)


def run(out: Path) -> None:
    """All arms and totals of a world, then the next world."""
    wanted = registered()
    for seed in seeds_between(wanted["seeds"]):
        if str(seed) in known(out):
            continue
        ground = GROUNDS["twin"](seed, wanted["rare"], wanted["beta"])
        done = {}
        for name, arm in wanted["arms"].items():
            for total in arm["totals"]:
                estimated, cell = spent(total, arm["estimate"], arm["labels_each"])
                one = played(ground, cell, ARMS["shipped"], seed, estimated=estimated)
                done[f"{name}/{total}"] = asdict(one)
        keep(out, str(seed), done)


def table(results: Results) -> str:
    """Gaps by total and arm, and how much lower than the shipped split's."""
    heads = ["labels", "split", "answers × labels", "picks", "worlds", "gap", "lower than shipped by", "over the limit"]
    lines = ["| " + " | ".join([*heads, "used"]) + " |", "|---" * (len(heads) + 1) + "|"]
    worlds = list(results.values())
    for total in registered()["arms"]["shipped"]["totals"]:
        for name, arm in registered()["arms"].items():
            if total not in arm["totals"]:
                continue
            estimated, cell = spent(total, arm["estimate"], arm["labels_each"])
            rows, base = ([row[f"{one}/{total}"] for row in worlds] for one in (name, "shipped"))
            gaps, shipped = (np.array([one["gaps"][-1] for one in runs]) for runs in (rows, base))
            lower = "" if name == "shipped" else with_interval(shipped - gaps)
            lines.append(
                f"| {total:,} | {name} | {estimated.responses} × {estimated.labels_each} | {cell.picks} | {len(rows)} "
                f"| {gaps.mean():.3f} | {lower} | {sum(one['violation'] > 0 for one in rows)} "
                f"| {np.mean([one['labels'] for one in rows]):,.0f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    command(str(__doc__), RESULTS, run, table)
