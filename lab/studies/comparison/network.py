"""O-PD-DPO beside three compared methods on the real network, at equal total labels, under a limit of 5 % unsafe.

    python -m lab.studies.comparison.network run       # held-out worlds 1042 to 1044, all methods of a world together
    python -m lab.studies.comparison.network table     # the table of docs/comparison.md from what is there

O-PD-DPO runs as the recipe text-world-certified, in one process, and asks for its certificate itself. The others get
as many labels: their pairs are drawn from the whole reference until they have as many as O-PD-DPO asked for while it
learned, and all may test three candidates with 8,000 draws each. What the search on the twin (run.py) found is
taken over: C-DPO aims at 2 % with steps of 20, PD-DPO at the certificate's aim. Steps follow the number of pairs.
C-GRPO had no search; its KL weight is told the world's lambda*, for which the policy has the others' beta. Nothing was
run on these worlds before, and nothing was chosen on them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.comparison.run import gap_of
from lab.studies.exploration.run import with_interval
from lab.studies.label_splits.run import CANDIDATES, tests
from lab.studies.study import FOLDER, Results, command, keep, known
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal.identity import open_folder

RESULTS = FOLDER / "comparison" / "network.json"
SEEDS = (1042, 1043, 1044)
OURS, LIMIT, BETA, DRAWS = "o-pd-dpo", 0.05, 0.2, 8_000
OFFLINE = 1_500
STEPS_A_PAIR = 0.1
"""Of O-PD-DPO: some 750 reward steps over twelve rounds on some 7,500 pairs in the end."""


@dataclass(frozen=True)
class Arm:
    """A method and its recipe."""

    label: str
    recipe: str
    certifies: bool = False
    """Whether labels of its rounds move its multiplier and the run asks for its certificate; others' candidates are
    tested by the bench, newest first."""


ROUNDS_ASKED = 12 * 1_152
"""Labels of the rounds' estimates."""
ARMS: Mapping[str, Arm] = {
    OURS: Arm("O-PD-DPO", "text-world-certified", certifies=True),
    "pd-dpo": Arm("PD-DPO", "text-world-certified", certifies=True),
    "c-dpo": Arm("C-DPO", "c-dpo"),
    "c-grpo": Arm("C-GRPO", "c-grpo"),
}
LABELS_A_PAIR = 4
"""Which one is better, which one is worse in harm, and whether each answer is unsafe."""


# --- one run ----------------------------------------------------------------------------------------------------------


def config_of(name: str, seed: int, labels: int, multiplier: float) -> Config:
    """A method's run with a number of labels to learn from; `multiplier` is the world's lambda*."""
    arm = ARMS[name]
    world = f"world.family={{kind: drawn, limit: {{kind: rate, at_most: {LIMIT}}}}}"
    common = [f"seed={seed}", f"world.seed={seed}", world, f"beta={BETA}", "cluster.mode=in-process"]
    common += ["offline.compare_rounds=0", "trainer.threads=1"]
    common += [f"certificate.draws={DRAWS}", f"certificate.candidates={CANDIDATES}"] if arm.certifies else []
    if name == OURS:
        return load(arm.recipe, common)
    pairs = (labels - ROUNDS_ASKED * arm.certifies) // LABELS_A_PAIR
    steps = round(STEPS_A_PAIR * pairs)
    common += [f"offline.extra={pairs - OFFLINE}"]
    own = {
        "pd-dpo": ["algorithm=pd-dpo", f"trainer.stages.first_reward.steps={steps}"],
        "c-dpo": [
            *by_scores(0.02),
            "dual.rule={kind: anytime, first_step: 20.0, curvature_cap: false}",
            f"trainer.stages.first_cost={{steps: {steps}, learning_rate: 1.5e-3}}",
            "trainer.stages.cost.steps=240",
        ],
        "c-grpo": [
            *by_scores(0.02),
            "dual.rule={kind: log, rate: 4.0}",
            f"method.kl={BETA / (1.0 + multiplier):.4g}",
            f"scorers.fit.steps={steps}",
        ],
    }
    return load(arm.recipe, [*common, *own[name]])


def by_scores(aim: float) -> list[str]:
    """A limit on the rate that a cost model's chances are compared with."""
    return [
        *(
            "limits.cost={rate: {world: cost}, learned_from: comparisons}",
            f"limits.cost.at_most={LIMIT}",
            f"dual.margin={LIMIT - aim:g}",
        ),
        *("dual.cost_max=6.0", "dual.rho=null", "dual.first=null"),
    ]


def played(name: str, seed: int, folder: Path, ours: Mapping[str, Any] | None) -> dict[str, Any]:
    """One run and its tests, in plain numbers. `ours` is O-PD-DPO's on the same world."""
    learning, multiplier = (ours["learning"], ours["multiplier_optimum"]) if ours else (0, 0.0)
    shutil.rmtree(folder, ignore_errors=True)
    result = run_recipe(config_of(name, seed, learning, multiplier), folder)
    with open_folder(folder) as journal:
        exact = {number: (values["exact/gap_policy"], values["exact/g_policy"] + LIMIT)
                 for number, values in journal.metrics().items() if "exact/g_policy" in values}  # fmt: skip
    released, tested, draws = result["outcome"]["round"], result["outcome"]["tested"], result["labels_certificate"]
    if not ARMS[name].certifies:
        order = sorted(exact, reverse=True)[:CANDIDATES]
        rates = np.array([exact[number][1] for number in order])
        found, tested, draws = tests(rates, list(range(len(order))), DRAWS, np.random.default_rng([seed, 11]))
        released = None if found is None else order[found]
    return {
        "gap": None if released is None else round(exact[released][0], 6),
        "rate": None if released is None else round(exact[released][1], 6),
        "gap_reference": round(result["gap_reference"], 6),
        "gaps": [round(gap, 4) for gap, _ in exact.values()],
        "rates": [round(rate, 4) for _, rate in exact.values()],
        "multiplier": result["multiplier"],
        "multiplier_optimum": result["multiplier_optimum"],
        "tested": tested,
        "learning": result["labels_used"] - result["labels_certificate"],
        "draws": draws,
        "seconds": result["seconds"],
    }


# --- the study --------------------------------------------------------------------------------------------------------


def run(out: Path, runs: Path) -> None:
    """All methods of a world, O-PD-DPO first, whose labels the others get; then the next world."""
    for seed in SEEDS:
        for name in ARMS:
            row = known(out).get(str(seed), {})
            if name not in row:
                made = played(name, seed, runs / f"{seed}-{name}", row.get(OURS))
                keep(out, str(seed), {name: made})


def table(results: Results) -> str:
    """Methods in the order of their mean gap, with their differences to O-PD-DPO's on the same worlds."""
    worlds = [row for row in results.values() if set(row) == set(ARMS)]
    gaps = {name: np.array([gap_of(row[name]) for row in worlds]) for name in ARMS}
    rows = [
        "| method | worlds | released | gap of each world | mean | less O-PD-DPO's | last round's gap |"
        " last round's rate | labels |",
        "|---" * 9 + "|",
    ]
    for name in sorted(ARMS, key=lambda one: gaps[one].mean()):
        own = [row[name] for row in worlds]
        released = sum(one["gap"] is not None for one in own)
        each = ", ".join(f"{gap:.2f}" for gap in gaps[name])
        less = "" if name == OURS else with_interval(gaps[name] - gaps[OURS])
        last = ", ".join(f"{one['gaps'][-1]:.2f}" for one in own)
        rate = ", ".join(f"{100 * one['rates'][-1]:.1f} %" for one in own)
        labels = np.mean([one["learning"] + one["draws"] for one in own])
        rows.append(
            f"| {ARMS[name].label} | {len(own)} | {released} | {each} | {gaps[name].mean():.3f} | {less} | {last} |"
            f" {rate} | {labels:,.0f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    command(str(__doc__), RESULTS, run, table, runs=Path("runs/fair-network"))
