"""C6 and C11: what a delivery takes of a round, and what everything takes that is no computation of the algorithm.

Read from the journal of a run on Ray with vLLM: the recipe `text-world` without its comparison with offline PD-DPO, as
many rounds as repeats. `PDDPO_BENCH_RUN` names the folder of a finished run that is read instead. Times are wall times,
because a round waits; seconds of a fit are the trainer's own, so that the way to the trainer counts as no computation.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.ratio import Ratio, of_pairs
from pddpo_ray.driver.result import START, WALL
from pddpo_ray.report.run_data import RunData, read_run

RUN = "PDDPO_BENCH_RUN"
FITS = {"fit-reward": "fit/reward_seconds", "fit-cost": "fit/cost_seconds"}
"""Phases that train, and the trainer's own seconds for them."""
WORK = ("sample", "safety", "candidates", "explore", "compare")
"""Phases that sample, score, choose and label."""
WATCHED = "exact evaluation"


def run(repeats: int = 5, overrides: Sequence[str] = ()) -> list[Ratio]:
    """Seconds of a round over those of its delivery, and over those that are no computation; one pair per round."""
    given = os.environ.get(RUN)
    if given:
        return shares(read_run(Path(given)))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        short_run(place, [f"rounds={repeats}", "offline.compare_rounds=0", *overrides])
        return shares(read_run(place))


def short_run(place: Path, overrides: Sequence[str]) -> None:
    """The demo's recipe on a Ray session of its own."""
    from actors import launch
    from pddpo_ray.config import load

    launch.run_recipe(load("text-world", overrides), place)


def shares(data: RunData) -> list[Ratio]:
    """The rows of a finished run. Start-up and round 0 (pools of answers) are told apart and in none of them."""
    rounds = [round_of(data, number) for number in range(1, data.finished + 1)]
    percent = {
        f"% {name}": 100 * float(np.median([one.parts[name] / one.whole for one in rounds])) for name in rounds[0].parts
    }
    seconds = {
        "s per round": float(np.median([one.whole for one in rounds])),
        "start-up s": data.metrics[0][START],
        "round 0 s": data.metrics[0][WALL],
    }
    delivery = {
        "s per round": seconds["s per round"],
        "delivery and delivery check s": float(np.median([one.parts["delivery"] for one in rounds])),
        "delivery alone s": float(np.median([one.delivery_alone for one in rounds])),
    }
    # the goals are 3 % and 10 % of a round
    return [
        of_pairs(
            "C6",
            "seconds of a round / of its delivery with delivery check",
            [(one.whole, one.parts["delivery"]) for one in rounds],
            floor=1 / 0.03,
            details=delivery,
        ),
        of_pairs(
            "C11",
            "seconds of a round / of what is not fit, sample, score, label or choose",
            [(one.whole, sum(one.parts.values())) for one in rounds],
            floor=10.0,
            details=seconds | percent,
        ),
        of_pairs(
            "C11-unwatched",
            "the same without the exact evaluation, which a run on real text does not have",
            [(one.whole - one.parts[WATCHED], sum(one.parts.values()) - one.parts[WATCHED]) for one in rounds],
            floor=10.0,
        ),
    ]


@dataclass(frozen=True)
class Round:
    """Where the seconds of one round went. `parts` are all that is no computation of the algorithm."""

    whole: float
    parts: Mapping[str, float]
    delivery_alone: float
    """What the engine says about it: without the delivery check and the way to the engine."""


def round_of(data: RunData, number: int) -> Round:
    """The round's phases, sorted; what lies between them is what the round's wall time has more."""
    metrics = data.metrics[number]
    seconds = {phase.phase: phase.seconds for phase in data.phases if phase.round == number}
    named = {*FITS, *WORK, "publish", "evaluate"}
    # The next reward fit may begin before the round ends; the evaluation then costs what it does not cover.
    watched = max(0.0, seconds["evaluate"] - _ahead(data, number + 1))
    parts = {
        "delivery": seconds["publish"],
        WATCHED: watched,
        "way to the trainer": sum(max(0.0, seconds[phase] - metrics[own]) for phase, own in FITS.items()),
        "other phases": sum(spent for phase, spent in seconds.items() if phase not in named),
        "between phases": metrics[WALL] - sum(seconds.values()),
    }
    alone = sum(entry.delivery.seconds for entry in data.deliveries if entry.round == number)
    return Round(metrics[WALL], parts, alone)


def _ahead(data: RunData, number: int) -> float:
    """Seconds of a round's reward fit that had passed when the round began."""
    spent = sum(phase.seconds for phase in data.phases if phase.round == number and phase.phase == "fit-reward")
    return max(0.0, data.metrics[number][FITS["fit-reward"]] - spent) if number <= data.finished else 0.0
