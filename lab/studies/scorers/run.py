"""What holds back a run whose labels come from trained models: one cause at a time is replaced by the truth.

    python -m lab.studies.scorers.run run  # 3 worlds of the recipe text-world-scorers, all arms of a world together
    python -m lab.studies.scorers.run table       # the table of docs/scorers.md from what is there

The network, the scorers and the run are those of the recipe; a bench puts the truth where an arm says so. Nothing was
run on the worlds before. Runs are written as they finish, so a broken study continues where it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.exploration.run import with_interval
from lab.studies.study import FOLDER, Results, command, keep, known
from pddpo_ray.backends import in_process
from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.records import Array, Response
from pddpo_ray.scorers.fits import MakeScorer, OpenScorer
from pddpo_ray.scoring.interface import AnswerScorer, TextPair
from pddpo_ray.worlds.text.prepared_world import prepare_text_world
from pddpo_ray.worlds.text.world import TextWorld

RESULTS = FOLDER / "scorers" / "results.json"
SEEDS = (2000, 2001, 2002)
MEASURED_ON = 4_000
"""Answers of the reference that tell how far a model's scores are from the truth."""


@dataclass(frozen=True)
class Arm:
    """What the truth says in place of the trained models."""

    label: str
    true: tuple[str, ...] = ()
    """Models that are the truth: reward, cost."""
    calibrated: bool = False
    """Whether the trained cost model's scores go through the line that fits the truth best."""
    overrides: tuple[str, ...] = ()


CLIPPED = ("scorers.clip_share=0.99",)
"""A world's own costs end at ±C, where the gate suspects a model's."""
ARMS: Mapping[str, Arm] = {
    "learned": Arm("both models trained, 3,000 pairs (the recipe)"),
    "pairs": Arm("both trained, 12,000 pairs", overrides=("scorers.pairs=12000", "scorers.fit.steps=1600")),
    "calibrated": Arm("both trained, the cost's scale and zero from the truth", calibrated=True),
    "reward": Arm("the truth for reward, cost trained", true=("reward",)),
    "cost": Arm("reward trained, the truth for cost", true=("cost",), overrides=CLIPPED),
    "truth": Arm("the truth for both", true=("reward", "cost"), overrides=CLIPPED),
}


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class TrueScorer:
    """Satisfies AnswerScorer: the world's own numbers."""

    name: str
    truth: Callable[[Response], float]

    def score(self, responses: Sequence[Response]) -> Array:
        return np.array([self.truth(one) for one in responses])

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        raise NotImplementedError("the truth is asked about answers of a run")


@dataclass(eq=False)
class LineScorer:
    """Satisfies AnswerScorer: a model's scores times a slope plus a zero."""

    name: str
    model: AnswerScorer
    slope: float
    zero: float

    def score(self, responses: Sequence[Response]) -> Array:
        return self.slope * self.model.score(responses) + self.zero

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        return self.slope * self.model.score_texts(texts) + self.zero


def config_of(seed: int, arm: Arm) -> Config:
    """The recipe's run in one process, on one thread."""
    alone = ("cluster.mode=in-process", "trainer.threads=1", "offline.compare_rounds=0")
    return load("text-world-scorers", (f"seed={seed}", f"world.seed={seed}", *alone, *arm.overrides))


def backends_of(arm: Arm, config: Config, folder: Path) -> Backends:
    """The run's backends, with the truth where the arm says so."""
    world = prepare_text_world(config).world
    return replace(in_process.make_backends(config, folder), own_scorer=opener(arm, world, config.seed))


def opener(arm: Arm, world: TextWorld, seed: int) -> OpenScorer:
    """Opens the truth, or the model that was trained, in which case the truth may set scale and zero of a cost."""
    truths = {"reward-model": world.reward, "cost-model": world.cost}

    def opened(name: str, make: MakeScorer) -> AnswerScorer:
        truth = TrueScorer(name, truths[name])
        if name.removesuffix("-model") in arm.true:
            return truth
        model = make()
        if arm.calibrated and name == "cost-model":
            answers = drawn_answers(world, seed)
            return LineScorer(name, model, *line(model.score(answers), truth.score(answers)))
        return model

    return opened


def drawn_answers(world: TextWorld, seed: int) -> list[Response]:
    """Answers of the reference, as it draws them over all prompts alike."""
    random = np.random.default_rng([seed, 17])
    inside = world.oracle.reference[:, : len(world.grammar.answer_ids)]
    cells = random.choice(inside.size, MEASURED_ON, p=(inside / inside.sum()).ravel())
    return [
        Response(f"measured-{n}", world.prompts[x], world.grammar.answer_ids[y], world.grammar.answer_texts[y], 0, 0)
        for n, (x, y) in enumerate(zip(*np.unravel_index(cells, inside.shape), strict=True))
    ]


def line(scores: Array, truth: Array) -> tuple[float, float]:
    """Slope and zero of the least squares line from scores to the truth. [n], [n]"""
    slope, zero = np.polyfit(scores, truth, 1)
    return float(slope), float(zero)


def played(seed: int, name: str, folder: Path) -> dict[str, Any]:
    """One run in plain numbers."""
    arm, config = ARMS[name], config_of(seed, ARMS[name])
    shutil.rmtree(folder, ignore_errors=True)
    result = run_recipe(config, folder, make_backends=partial(backends_of, arm))
    kept = ("gap_last", "g_last", "gap_reference", "multiplier", "multiplier_optimum", "labels_used", "labels_scorers")
    scorers = result["scorers"] or {}
    return {**{one: result[one] for one in kept}, "scorers": scorers, "seconds": result["seconds"]}


# --- the study --------------------------------------------------------------------------------------------------------


def run(out: Path, runs: Path) -> None:
    """All arms of a world, then the next world."""
    for seed in SEEDS:
        for name in ARMS:
            if name not in known(out).get(str(seed), {}):
                made = played(seed, name, runs / f"{seed}-{name}")
                keep(out, str(seed), {name: made})


def table(results: Results) -> str:
    """Gaps by arm, and how much lower than with both models trained, on the worlds that all arms have finished."""
    worlds = [row for row in results.values() if set(row) == set(ARMS)]
    gaps = {name: np.array([row[name]["gap_last"] for row in worlds]) for name in ARMS}
    rows = ["| labels | gap of each world | mean | lower than the recipe's by | λ over λ* | labels |", "|---" * 6 + "|"]
    for name, arm in ARMS.items():
        own = [row[name] for row in worlds]
        lower = "" if name == "learned" else with_interval(gaps["learned"] - gaps[name])
        multipliers = ", ".join(f"{one['multiplier'] / one['multiplier_optimum']:.2f}" for one in own)
        labels = np.mean([one["labels_used"] for one in own])
        each = ", ".join(f"{gap:.2f}" for gap in gaps[name])
        rows.append(f"| {arm.label} | {each} | {gaps[name].mean():.3f} | {lower} | {multipliers} | {labels:,.0f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    command(str(__doc__), RESULTS, run, table, runs=Path("runs/scorer-causes"))
