"""Compared methods after an equal search, on held-out worlds at equal total labels (registered.yaml).

    python -m lab.studies.comparison.run search        # six trials of every compared method on the tuning worlds
    python -m lab.studies.comparison.run run  # the held-out worlds, each method with the settings of its best trial
    python -m lab.studies.comparison.run models        # the same worlds and settings, labels drawn from learned scorers
    python -m lab.studies.comparison.run table         # the tables of docs/comparison.md from what is there
    python -m lab.studies.comparison.run all           # all four (`make fair`)

Runs are written as they finish, so a broken study continues where it was.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from lab.studies.comparison.assembled import OneDual, RateLimit, parts_of
from lab.studies.comparison.ground import BETA, LIMIT, REFERENCE, Bonus, Ground, fair_ground
from lab.studies.comparison.parts import Chooser, Draws, Known, Rounds, Scores, Solved, Truth, with_models
from lab.studies.exploration.run import holm, permutation_p, shown_p, with_interval
from lab.studies.label_splits.run import CANDIDATES, NAME, ordered, tests
from lab.studies.study import FOLDER, Results, keep, known, registration, seeds_between
from pddpo_lab.methods import c_dpo, caid, mocan, pecan, sacpo, safe_dpo
from pddpo_lab.methods.settings import CaidSettings, OneShotSettings, SafeDpoSettings
from pddpo_ray.algorithms import dpo_harmless, dpo_helpful, o_pd_dpo, pd_dpo, pd_dpo_adalag
from pddpo_ray.algorithms.stages import Parts, Sizes
from pddpo_ray.records import Array, PolicyVersion, UniformMixture
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.certificates.power import likely_rate
from pddpo_ray.theory.multipliers.dual import (
    DampedNewton,
    DualState,
    Fixed,
    LimitState,
    LogMultiplier,
    ProjectedAnytime,
    Rule,
    limit_state,
)

RESULTS = FOLDER / "comparison" / "results.json"
LADDER = (1.0, 1.5, 2.5)
DELTA = 0.05
OURS = "o-pd-dpo"
HELD_OUT, MODELS = "held-out", "models"
"""Where labels are the truth's, and where they are of learned scorers."""
Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """A method and what its labels are spent on."""

    label: str
    run: Callable[[Parts, Sizes, PolicyVersion], UniformMixture]
    asks: frozenset[str]
    """What a pair is compared for."""
    bits: int = 0
    """Safety labels that a pair costs: of both of its answers."""
    rounds: int = 1
    responses: int = 0
    """Answers of a round that are labelled for the multiplier."""
    scored: int = 0
    """Answers of a round that a cost model scores."""
    ladder: str = ""
    """What the ladder of candidates moves: multiplier, sharper, flatter; empty: candidates are rounds."""
    by_rate: bool = False
    """Whether measured values teach a rate's stage, and labels move its multiplier."""
    bonus: Bonus | None = None
    """Of the explorer; None: the method has none, and all of its pairs are there before."""
    picks: int = 12
    """Candidates of a prompt that are labelled, of this number:"""
    candidates: int = 32

    @property
    def online(self) -> bool:
        return self.bonus is not None


HELPFUL, HARMFUL = "helpful", "harmful"
BOTH = frozenset({HELPFUL, HARMFUL})
ROUNDS, PROMPTS, OFFLINE = 12, 24, 1_350
ARMS: Mapping[str, Arm] = {
    OURS: Arm("O-PD-DPO", o_pd_dpo.run, frozenset({HELPFUL}), 2, ROUNDS, 256, by_rate=True, bonus="elliptical"),
    "o-pd-dpo-off": Arm(
        "O-PD-DPO, bonus off", o_pd_dpo.run, frozenset({HELPFUL}), 2, ROUNDS, 256, by_rate=True, bonus="off"
    ),
    "pd-dpo": Arm("PD-DPO", pd_dpo.run, frozenset({HELPFUL}), 2, 8, 256, by_rate=True),
    "pd-dpo-adalag": Arm("PD-DPO-adaLag", pd_dpo_adalag.run, frozenset({HELPFUL}), 2, 21, 64, by_rate=True),
    "sacpo": Arm("SACPO", sacpo.run, BOTH, ladder="multiplier"),
    "mocan": Arm("MoCAN", mocan.run, BOTH, 2, ladder="multiplier"),
    "pecan": Arm("PeCAN", pecan.run, BOTH, responses=300, ladder="multiplier"),
    "c-dpo": Arm("C-DPO", c_dpo.run, BOTH, 2, 8, scored=288),
    "caid": Arm("CAID", caid.run, BOTH, 2, 4, scored=288),
    "safe-dpo": Arm("SafeDPO", safe_dpo.run, frozenset({HELPFUL}), 2, ladder="sharper"),
    "dpo-helpful": Arm("DPO-Helpful", dpo_helpful.run, frozenset({HELPFUL}), ladder="flatter"),
    "dpo-harmless": Arm("DPO-Harmless", dpo_harmless.run, frozenset({HARMFUL}), ladder="sharper"),
}


def registered() -> Mapping[str, Any]:
    """What was registered."""
    return registration("comparison")


def certificate_aim() -> float:
    """A true rate that a first candidate's test certifies four times in five."""
    return max(likely_rate(LIMIT, registered()["labels"]["draws"], Allocation().level(DELTA, 1)), LIMIT / 2.0)


def pairs_before(arm: Arm) -> int:
    """Pairs that are there before the first round: what is left of the labels for learning."""
    if arm.online:
        return OFFLINE
    rounds = arm.rounds + (arm.run is pecan.run)  # which asks about answers of the reference too
    left = registered()["labels"]["learning"] - rounds * arm.responses
    return int(left // (len(arm.asks) + arm.bits))


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Learned:
    """Candidates in the order of their tests, [X, Y] each, the last policy, and the labels that they took."""

    tables: list[Array]
    last: Array
    labels: int


def learned(ground: Ground, arm: Arm, setting: Setting, seed: int) -> Learned:
    """Runs the method; a ladder's rungs are runs on the same labels."""
    trainer = Solved(ground.policies)
    if arm.ladder:
        made = [_once(ground, arm, setting, seed, trainer, rung) for rung in LADDER]
        return Learned([one.last for one in made], made[-1].last, made[0].labels)
    return _once(ground, arm, setting, seed, trainer, 1.0)


def _once(ground: Ground, arm: Arm, setting: Setting, seed: int, trainer: Solved, rung: float) -> Learned:
    journal, known_pairs, truth = Rounds(), Known(), Truth(ground.labeller, seed, arm.asks)
    draws = Draws(trainer, journal, seed, arm.candidates)
    aim = setting.get("aim", "certificate")
    aim = certificate_aim() if aim == "certificate" else float(aim)
    limit = rate_limit(ground, arm, setting, aim, trainer, truth) if arm.by_rate else None
    upper = 2.0 * ground.oracle.rho
    scores = Scores(ground, trainer, draws, journal, aim=aim, upper=upper, answers=128, ladder=rung, seed=seed)
    explorer = None
    if arm.bonus is not None and limit is not None:
        explorer = Chooser(ground, draws, lambda: limit.multiplier, seed, arm.picks, arm.bonus)
    pairs = draws.pairs(pairs_before(arm), ground.baseline if arm.online else ground.oracle.reference)
    known_pairs.extend(truth.compare(pairs))
    if limit is not None:
        limit.measure_pairs(pairs)
    parts = parts_of(journal, trainer, draws, truth, known_pairs, one_dual(ground, arm, setting, aim, rung), scores,
                     limit, explorer)  # fmt: skip
    arm.run(parts, sizes_of(arm, setting, rung), REFERENCE)
    tables = np.exp([trainer.tables[one.number] for one in journal.policies])
    return Learned(in_order(arm, tables, trainer, limit), tables[-1], sum(truth.spent.values()))


def sizes_of(arm: Arm, setting: Setting, rung: float) -> Sizes:
    """Sizes of a round. A rung moves the temperature where nothing else moves the candidates."""
    beta = setting.get("beta", BETA) * {"sharper": 1.0 / rung, "flatter": rung}.get(arm.ladder, 1.0)
    each = 2 if arm.by_rate else 1
    asked = (arm.responses + arm.scored) // each
    return Sizes(arm.rounds, asked, 1, PROMPTS, beta, own_settings(arm, setting), answers_each=each)


def own_settings(arm: Arm, setting: Setting) -> BaseModel | None:
    """Those that a recipe has under `method`."""
    if arm.run is safe_dpo.run:
        return SafeDpoSettings(margin=setting.get("margin", 10.0))
    if arm.run is caid.run:
        return CaidSettings(rate=setting.get("step", 1.0))
    return OneShotSettings() if arm.run in (mocan.run, pecan.run) else None


def rate_limit(ground: Ground, arm: Arm, setting: Setting, aim: float, trainer: Solved, truth: Truth) -> RateLimit:
    """The limit as runs have it: rho first, twice rho at most."""
    rho = ground.oracle.rho
    adaptive = arm.run is pd_dpo_adalag.run
    rule: Rule = DampedNewton(arm.rounds, BETA, 0.5, setting.get("damping", 0.5))
    if adaptive:
        rule = LogMultiplier(setting["step"])
    state = LimitState(NAME, rho, 2.0 * rho, LIMIT, rule, lower=0.05 if adaptive else 0.0, margin=LIMIT - aim)
    return RateLimit(ground, trainer, truth, DualState((state,)), 128)


def one_dual(ground: Ground, arm: Arm, setting: Setting, aim: float, rung: float) -> OneDual:
    """A given multiplier, or C-DPO's, which moves by the cost model's view of its own answers."""
    rho = ground.oracle.rho
    if arm.run is c_dpo.run:
        rule = ProjectedAnytime(setting["step"], 1.0)
        return OneDual(DualState((limit_state("cost", rho=rho, rule=rule, limit=aim),)))
    given = setting.get("multiplier", 1.0) * rung
    return OneDual(DualState((limit_state("cost", rho=rho, upper=2.0 * given, first=given, rule=Fixed()),)))


def in_order(arm: Arm, tables: Array, trainer: Solved, limit: RateLimit | None) -> list[Array]:
    """Policies of all rounds in the order of their tests. [K, X, Y]"""
    if limit is None or arm.run is pd_dpo_adalag.run:
        return list(tables[::-1][:CANDIDATES])
    reward = trainer.tables[limit.base.number]
    chosen = ordered(tables, reward, limit.answered, registered()["labels"]["draws"])
    return [tables[index] for index in chosen[:CANDIDATES]]


def played(ground: Ground, name: str, setting: Setting, seed: int) -> dict[str, Any]:
    """One run, tested: what it released, in plain numbers."""
    began, oracle = time.process_time(), ground.oracle
    made = learned(ground, ARMS[name], setting, seed)
    rates = np.array([float(oracle.expectations(table, oracle.cost)) for table in made.tables])
    random = np.random.default_rng([seed, 11])
    released, tested, spent = tests(rates, list(range(len(rates))), registered()["labels"]["draws"], random)
    gaps = [float(oracle.gap(table)) for table in made.tables]
    return {
        "gap": None if released is None else round(gaps[released], 6),
        "rate": None if released is None else round(float(rates[released]), 6),
        "gap_reference": round(float(oracle.gap(oracle.reference)), 6),
        "gaps": [round(gap, 6) for gap in gaps],
        "rates": [round(float(rate), 6) for rate in rates],
        "tested": tested,
        "labels": made.labels,
        "draws": spent,
        "seconds": round(time.process_time() - began, 2),
    }


# --- the study --------------------------------------------------------------------------------------------------------


def gap_of(run: Mapping[str, Any]) -> float:
    """Gap of what the run leaves to serve: the released policy, or the reference."""
    return float(run["gap_reference"] if run["gap"] is None else run["gap"])


def search(out: Path, only: Sequence[str]) -> None:
    """All trials on a tuning world, then the next world."""
    for seed in seeds_between(registered()["seeds"]["tuning"]):
        ground = None
        for name, trials in registered()["trials"].items():
            for number, setting in enumerate(trials):
                if name not in only or str(seed) in known(out).get(f"trial/{name}/{number}", {}):
                    continue
                ground = ground or fair_ground(seed)
                keep(out, f"trial/{name}/{number}", {str(seed): played(ground, name, setting, seed)})


def best_trial(results: Results, name: str) -> int:
    """The trial with the smallest mean gap over the tuning worlds, the first of equals; all must be finished."""
    seeds = [str(seed) for seed in seeds_between(registered()["seeds"]["tuning"])]
    means = [
        np.mean([gap_of(results[f"trial/{name}/{number}"][seed]) for seed in seeds])
        for number in range(len(registered()["trials"][name]))
    ]
    return int(np.argmin(means))


def setting_of(results: Results, name: str) -> Setting:
    """The settings of a method's best trial; none for those that have no trials."""
    trials = registered()["trials"].get(name)
    found: Setting = {} if trials is None else trials[best_trial(results, name)]
    return found


def run(out: Path, only: Sequence[str], where: str = HELD_OUT) -> None:
    """All methods on a held-out world, then the next world."""
    for seed in seeds_between(registered()["seeds"]["held_out"]):
        ground = None
        for name in only:
            if name not in known(out).get(f"{where}/{seed}", {}):
                ground = ground or ground_of(where, seed)
                keep(out, f"{where}/{seed}", {name: played(ground, name, setting_of(known(out), name), seed)})


def ground_of(where: str, seed: int) -> Ground:
    """A held-out world, with labels of the truth or of models."""
    ground = fair_ground(seed)
    return ground if where == HELD_OUT else with_models(ground, seed, registered()["models"]["pairs"])


# --- tables -----------------------------------------------------------------------------------------------------------


def worlds_of(results: Results, name: str, where: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(the method's run, O-PD-DPO's) on every held-out world that all methods have finished."""
    rows = [results.get(f"{where}/{seed}", {}) for seed in seeds_between(registered()["seeds"]["held_out"])]
    played_by = {method for row in rows for method in row}
    return [(row[name], row[OURS]) for row in rows if set(row) == played_by and name in row]


def table(results: Results, where: str = HELD_OUT) -> str:
    """Methods in the order of their mean gap, with their differences to O-PD-DPO's on the same worlds."""
    found = {name: worlds_of(results, name, where) for name in ARMS}
    found = {name: rows for name, rows in found.items() if rows}
    compared = [name for name in found if name != OURS]
    apart = {name: np.array([gap_of(own) - gap_of(ours) for own, ours in found[name]]) for name in compared}
    chances = dict(zip(compared, holm([permutation_p(apart[name]) for name in compared]), strict=True))
    rows = [
        "| method | settings of the best trial | worlds | released | gap | less O-PD-DPO's | p, Holm | O-PD-DPO lower |"
        " both released | over 5 % | labels |",
        "|---" * 11 + "|",
    ]
    for name in sorted(found, key=lambda one: np.mean([gap_of(own) for own, _ in found[one]])):
        own = [run for run, _ in found[name]]
        both = np.array([mine["gap"] - ours["gap"] for mine, ours in found[name]
                         if mine["gap"] is not None and ours["gap"] is not None])  # fmt: skip
        less = "" if name == OURS else with_interval(apart[name])
        released = [one for one in own if one["gap"] is not None]
        setting = ", ".join(f"{key} {value}" for key, value in setting_of(results, name).items()) or "defaults"
        chance = "" if name == OURS else shown_p(chances[name])
        shared = "" if name == OURS else f"{len(both)}: {with_interval(both)}"
        mean = np.mean([gap_of(one) for one in own])
        lower = "" if name == OURS else f"{(apart[name] > 0).sum()} of {len(own)}"
        rows.append(
            f"| {ARMS[name].label} | {setting} | {len(own)} | {len(released)} | {mean:.3f} |"
            f" {less} | {chance} | {lower} | {shared} | {sum(one['rate'] > LIMIT for one in released)} |"
            f" {np.mean([one['labels'] + one['draws'] for one in own]):,.0f} |"
        )
    return "\n".join(rows)


def tables(results: Results) -> list[str]:
    """What docs/comparison.md shows: labels of the truth, of models, and the search."""
    return [table(results), table(results, MODELS), trials_table(results)]


def trials_table(results: Results) -> str:
    """Mean gap of every trial over the tuning worlds, in the registered order."""
    seeds = [str(seed) for seed in seeds_between(registered()["seeds"]["tuning"])]
    rows = ["| method | " + " | ".join(f"trial {number}" for number in range(1, 7)) + " |", "|---" * 7 + "|"]
    for name, trials in registered()["trials"].items():
        cells = []
        for number in range(len(trials)):
            runs = results.get(f"trial/{name}/{number}", {})
            kept = [runs[seed] for seed in seeds if seed in runs]
            released = sum(one["gap"] is not None for one in kept)
            cells.append(f"{np.mean([gap_of(one) for one in kept]):.3f} ({released})" if kept else "")
        rows.append(f"| {ARMS[name].label} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "run", "models", "table", "all"])
    parser.add_argument("--only", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    steps: dict[str, Callable[[], None]] = {
        "search": lambda: search(asked.out, asked.only),
        "run": lambda: run(asked.out, asked.only),
        "models": lambda: run(asked.out, asked.only, MODELS),
        "table": lambda: print(*tables(known(asked.out)), sep="\n\n"),
    }
    for step in steps if asked.what == "all" else (asked.what,):
        steps[step]()


if __name__ == "__main__":
    main()
