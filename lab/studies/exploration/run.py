"""Does exploration pay? Cells of rarity, beta and choice; the registered worlds and arms (registered.yaml).

    python -m lab.studies.exploration.run choose  # the tuning worlds, and which alternative they choose as `best`
    python -m lab.studies.exploration.run run  # the registered worlds; a part: `tables`, `run twin --cells deep wide`
    python -m lab.studies.exploration.run table             # the tables of docs/exploration.md from what is there
    python -m lab.studies.exploration.run network  # the corners on the real network: 36 runs
    python -m lab.studies.exploration.run all               # choose, run, table (`make phase`)

A world is written with all of its arms once these are finished, so a broken study continues where it was.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.exploration.played import ARMS, Arm, Cell, Played, played
from lab.studies.exploration.worlds import GROUNDS
from lab.studies.study import FOLDER, Results, keep, known, registration, seeds_between
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.records import Array
from pddpo_ray.theory.intervals import student_half_width
from pddpo_ray.theory.seeds import generator

RESULTS = FOLDER / "exploration" / "results.json"
FLIPS = 100_000
PRIMARY, CHANGE = ("proposals", "shipped"), ("shipped", "best")
PAIRS = (("off", "shipped"), PRIMARY, ("shipped", "exact"), CHANGE, ("off", "proposals"))
"""Compared arms; a positive difference says that the second has the smaller gap. The last one was not registered."""


def registered() -> Mapping[str, Any]:
    """What was registered."""
    return registration("exploration")


def cell_of(name: str) -> Cell:
    return Cell(**registered()["cells"][name])


# --- runs -----------------------------------------------------------------------------------------------------------


def play(out: Path, place: str, cell: str, seed: int, arms: Mapping[str, Arm]) -> None:
    """Plays the arms of one world that are not in the file yet, and writes them whole."""
    before, key = known(out), f"{place}/{cell}/{seed}"
    missing = {name: arm for name, arm in arms.items() if name not in before.get(key, {})}
    if not missing:
        return
    setting = cell_of(cell)
    ground = GROUNDS[place](seed, setting.rare, setting.beta)
    done = {name: asdict(played(ground, setting, arm, seed)) for name, arm in missing.items()}
    keep(out, key, done)


def choose(out: Path) -> None:
    """Plays the tuning worlds."""
    rule = registered()["choice_of_best"]
    arms = {name: ARMS[name] for name in ["shipped", *rule["among"]]}
    for place, ends in registered()["seeds"]["tuning"].items():
        for seed in seeds_between(ends):
            for cell in rule["cells"]:
                play(out, place, cell, seed, arms)
    for name, gap in tuned(known(out)).items():
        print(f"{name}: mean gap {gap:.3f} on the tuning worlds")
    print(f"best: {best_of(known(out))}")


def tuned(results: Results) -> dict[str, float]:
    """Mean gap of each alternative on the tuning worlds, both places weighing alike."""
    rule, places = registered()["choice_of_best"], registered()["seeds"]["tuning"]
    return {
        name: float(
            np.mean(
                [
                    np.mean([results[f"{place}/{c}/{s}"][name]["gaps"][-1] for c in rule["cells"] for s in seeds])
                    for place, ends in places.items()
                    for seeds in [seeds_between(ends)]
                ]
            )
        )
        for name in ["shipped", *rule["among"]]
    }


def best_of(results: Results) -> str:
    """The alternative that the tuning worlds choose."""
    gaps = tuned(results)
    return min(registered()["choice_of_best"]["among"], key=gaps.__getitem__)


def registered_worlds() -> Iterator[tuple[str, str, int]]:
    """(place, cell, seed) in the registered order."""
    seeds = seeds_between(registered()["seeds"]["held_out"])
    for place, cells in (
        ("tables", list(registered()["cells"])), ("twin", ["deep", "wide"]), ("twin", ["needle", "today"]),
    ):  # fmt: skip
        yield from ((place, cell, seed) for seed in seeds for cell in cells)


def run(out: Path, places: Sequence[str], cells: Sequence[str]) -> None:
    """Plays the registered worlds."""
    arms = {"off": ARMS["off"], "proposals": ARMS["proposals"], "shipped": ARMS["shipped"], "exact": ARMS["exact"]}
    arms["best"] = ARMS[best_of(known(out))]
    for place, cell, seed in registered_worlds():
        if place in places and cell in cells:
            play(out, place, cell, seed, arms)


def network(out: Path, runs: Path, cells: Sequence[str]) -> None:
    """The corners on the real network, through the run that `pddpo train o-pd-dpo` makes."""
    wanted = registered()["network"]
    for seed in seeds_between(wanted["seeds"]):
        for cell in [one for one in wanted["cells"] if one in cells]:
            for arm in wanted["arms"]:
                key = f"network/{cell}/{seed}"
                if arm in known(out).get(key, {}):
                    continue
                folder = runs / f"{cell}-{seed}-{arm}"
                shutil.rmtree(folder, ignore_errors=True)
                result = run_recipe(network_config(cell, seed, arm), folder)
                keep(out, key, {arm: {"gaps": [result["gap_last"]]}})


def network_config(cell: str, seed: int, arm: str) -> Config:
    """The demo's method in one process, at a cell's setting. One thread, so that two cells share two cores."""
    setting = cell_of(cell)
    overrides = (
        f"seed={seed}", f"world.seed={seed}", f"world.reference.rare={setting.rare}", f"beta={setting.beta}",
        f"explore.picks={setting.picks}", f"explore.bonus={ARMS[arm].bonus}",
        f"rollout.candidates={setting.candidates}", "offline.compare_rounds=0", "trainer.threads=1",
    )  # fmt: skip
    return load("o-pd-dpo", overrides)


# --- tables ---------------------------------------------------------------------------------------------------------


def differences(results: Results, place: str, cell: str, pair: tuple[str, str], index: int = -1) -> Array:
    """Gap of the first arm less that of the second, of every registered world with both. -> [n]"""
    first, second = pair
    rows = [row for row in held_out(results, place, cell) if first in row and second in row]
    return np.array([row[first]["gaps"][index] - row[second]["gaps"][index] for row in rows])


def permutation_p(values: Array) -> float:
    """Two-sided p of a mean of 0 when each sign is as likely as the other. [n] -> []"""
    signs = generator(0, "flips").integers(0, 2, (FLIPS, len(values))) * 2 - 1
    means = np.abs(signs @ values)
    return float((1 + (means >= abs(values.sum()) - 1e-12).sum()) / (1 + FLIPS))


def holm(chances: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the given order."""
    order = np.argsort(chances)
    scaled = [chances[index] * (len(chances) - place) for place, index in enumerate(order)]
    raised = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(raised[list(order).index(index)]) for index in range(len(chances))]


def with_interval(values: Array) -> str:
    """Mean with its 95 % interval by Student."""
    if len(values) < 2:
        return "none"
    mean = values.mean()
    half = student_half_width(float(values.std(ddof=1)) / np.sqrt(len(values)), len(values))
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


def places_of(results: Results) -> list[tuple[str, str]]:
    """Places and cells with at least two worlds of the primary comparison."""
    pairs = [(place, cell) for place in ("tables", "twin", "network") for cell in registered()["cells"]]
    return [pair for pair in pairs if len(differences(results, *pair, PRIMARY)) >= 2]


def table(results: Results) -> str:
    """Gaps of the arms, differences with intervals, and what the arms cost, in Markdown."""
    parts = (gaps_table, differences_table, rounds_table, costs_table)
    return "\n\n".join(part(results) for part in parts)


def gaps_table(results: Results) -> str:
    """Mean gap after the last round."""
    arms = ("off", "proposals", "shipped", "exact", "best")
    rows = ["| where | cell | worlds | " + " | ".join(arms) + " |", "|---" * (3 + len(arms)) + "|"]
    for place, cell in places_of(results):
        found = held_out(results, place, cell)
        means = [[row[arm]["gaps"][-1] for row in found if arm in row] for arm in arms]
        shown = " | ".join(f"{np.mean(gaps):.3f}" if gaps else "" for gaps in means)
        rows.append(f"| {place} | {cell} | {len(found)} | {shown} |")
    return "\n".join(rows)


def held_out(results: Results, place: str, cell: str) -> list[Results]:
    """The registered worlds of a cell."""
    ends = registered()["network"]["seeds"] if place == "network" else registered()["seeds"]["held_out"]
    keys = [f"{place}/{cell}/{seed}" for seed in seeds_between(ends)]
    return [results[key] for key in keys if key in results]


def differences_table(results: Results) -> str:
    """Paired differences with intervals; p of the primary comparison and of the one that may change the default."""
    heads = [*(f"{first} − {second}" for first, second in PAIRS), *(f"p of {a} − {b}" for a, b in (PRIMARY, CHANGE))]
    rows = ["| where | cell | worlds | " + " | ".join(heads) + " |", "|---" * (3 + len(heads)) + "|"]
    shown = places_of(results)
    chances = [adjusted_p(results, pair, shown) for pair in (PRIMARY, CHANGE)]
    for index, (place, cell) in enumerate(shown):
        cells = " | ".join(with_interval(differences(results, place, cell, pair)) for pair in PAIRS)
        count = len(differences(results, place, cell, PRIMARY))
        rows.append(f"| {place} | {cell} | {count} | {cells} | {chances[0][index]} | {chances[1][index]} |")
    return "\n".join(rows)


def adjusted_p(results: Results, pair: tuple[str, str], shown: Sequence[tuple[str, str]]) -> list[str]:
    """p of a comparison in each place and cell, as it is and by Holm over the registered ones; the network's are not
    among them."""
    found = [differences(results, *one, pair) for one in shown]
    chances = [permutation_p(values) if len(values) else 1.0 for values in found]
    family = [index for index, (place, _) in enumerate(shown) if place in registered()["places"]]
    missing = len(registered()["places"]) * len(registered()["cells"]) - len(family)
    raised = holm([*(chances[index] for index in family), *[1.0] * missing])
    adjusted = {index: f", Holm {shown_p(one)}" for index, one in zip(family, raised, strict=False)}
    return [f"{shown_p(one)}{adjusted.get(index, '')}" for index, one in enumerate(chances)]


def shown_p(chance: float) -> str:
    return f"{chance:.4f}" if chance >= 1e-4 else "< 0.0001"


def rounds_table(results: Results) -> str:
    """The primary comparison after fewer rounds of the same runs."""
    rounds = registered()["rounds"]
    rows = [
        "| where | cell | worlds | " + " | ".join(f"round {k}" for k in rounds) + " |",
        "|---" * (3 + len(rounds)) + "|",
    ]
    for place, cell in places_of(results):
        if place == "network":
            continue
        found = [differences(results, place, cell, PRIMARY, k - 1) for k in rounds]
        rows.append(f"| {place} | {cell} | {len(found[0])} | " + " | ".join(map(with_interval, found)) + " |")
    return "\n".join(rows)


def costs_table(results: Results) -> str:
    """Labels, tokens and seconds of a run, means over worlds."""
    rows = ["| where | cell | arm | labels | tokens | seconds |", "|---" * 6 + "|"]
    for place, cell in places_of(results):
        if place == "network":
            continue
        for arm in ("off", "proposals", "shipped", "exact", "best"):
            runs = [Played(**row[arm]) for row in held_out(results, place, cell) if arm in row]
            if runs:
                labels, tokens, seconds = (
                    float(np.mean([getattr(one, part) for one in runs])) for part in ("labels", "tokens", "seconds")
                )
                rows.append(f"| {place} | {cell} | {arm} | {labels:,.0f} | {tokens:,.0f} | {seconds:.1f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["choose", "run", "table", "network", "all"])
    parser.add_argument("places", nargs="*", choices=[*GROUNDS, []], help="for run: tables, twin (default: both)")
    parser.add_argument("--cells", nargs="+", choices=list(registered()["cells"]), default=list(registered()["cells"]))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/phase"), help="for network: where its runs are kept")
    asked = parser.parse_args()
    steps: dict[str, Callable[[], None]] = {
        "choose": lambda: choose(asked.out),
        "run": lambda: run(asked.out, asked.places or list(GROUNDS), asked.cells),
        "table": lambda: print(table(known(asked.out))),
        "network": lambda: network(asked.out, asked.runs, asked.cells),
    }
    for step in ("choose", "run", "table") if asked.what == "all" else (asked.what,):
        steps[step]()


if __name__ == "__main__":
    main()
