"""How often a simulated run gets a false certificate: `python -m lab.studies.certificates.run [--runs 10000]`.

A cell is a way to go wrong, a limit and a true value (1.0, 1.1 and 2 times the limit). In each of its runs up to
twelve candidates are tested, the k-th at its level, with a look after every draw; the run is false if any policy that
is not below its limit is certified. The share of false runs may be at most delta + 2 standard errors.

Finished cells are kept in the file --out, so a broken run resumes where it was. `make verify-certificates` runs it all.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pddpo_ray.certificates.ledger import TestedLimit
from pddpo_ray.parts.prompts import cumulated, drawn_at
from pddpo_ray.theory.certificates.certificate import bets_below, log_wealth
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.certificates.measured_draws import (
    UPPER_WORST,
    counted,
    mixture_log_wealth,
    scaled,
    with_people,
)
from pddpo_ray.theory.certificates.power import allowed_failures
from pddpo_ray.theory.estimates.cost_estimate import clipped_logit
from pddpo_ray.theory.seeds import generator_of

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Random = np.random.Generator

DELTA, OTHER_DELTA, CANDIDATES = 0.05, 0.1, 12
FACTORS = (1.0, 1.1, 2.0)
DRAWS: Mapping[float, int] = {0.01: 1000, 0.05: 400, 0.3: 200}
"""Limits, and how many draws a candidate gets before it is given up."""
CHUNK, PROMPTS = 250, 128
RESULTS = Path(__file__).parent / "results.json"


# --- what is simulated: (random numbers, runs, limit, true value) -> which runs got a false certificate -----------


def one_label(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """A draw is one answer with one label."""
    return _any_candidate(lambda: _bits(random, runs, limit, truth), limit)


def best_by_its_round(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """Twelve rounds of 288 labels; candidates in the order that these suggest, the best first, each with draws that
    were made after it got its number."""
    return _chosen(random, runs, limit, truth, pooled=False)


def labels_that_chose(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """Not what is done: the labels that chose the order are also counted. It shows what the cell above can see."""
    return _chosen(random, runs, limit, truth, pooled=True)


def late_labels(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """Safe labels come up to 20 draws late, unsafe ones later; a label that is out counts as 1 at each look."""
    return _any_candidate(lambda: _with_delays(_bits(random, runs, limit, truth), random), limit, cumulated=True)


def late_labels_left_out(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """Not what is done: draws are counted when their labels come, so the late unsafe ones are missing at first."""

    def ever(number: int) -> Flags:
        bits = _bits(random, runs, limit, truth)
        order = np.argsort(np.arange(bits.shape[1]) + np.where(bits, 60, 0), axis=1, kind="stable")
        return _certified(np.take_along_axis(bits, order, axis=1), limit, _level(number))

    return _any(ever)


def several_answers_and_labels(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """A draw is a prompt with four answers of three labels each; prompts and answers differ in their risk."""
    risk = truth ** (1 / 3)

    def draws() -> Array:
        values = np.zeros((runs, DRAWS[limit]))
        risky = random.random(values.shape) < risk
        answers = random.binomial(4, risk, int(risky.sum()))
        values[risky] = random.binomial(3 * answers, risk) / 12
        return values

    return _any_candidate(draws, limit)


def rare_severe_harm(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """A mean with bounds [-2, 20]: at most 2 % of the answers are at 20, most of the others at -2."""

    def draws() -> Array:
        severe = min(0.02, 0.5 * truth)
        mild = (truth - severe) / (1 - severe)
        shape = (runs, DRAWS[limit])
        # others lie at -2 or, some of them, anywhere up to 20
        others = np.where(random.random(shape) < 2 * mild, random.random(shape), 0.0)
        return scaled(-2 + 22 * np.where(random.random(shape) < severe, 1.0, others), -2.0, 20.0)

    return _any_candidate(draws, limit)


def source_that_fails(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """A third of the unsafe answers gets no number; it counts as 1."""

    def draws() -> Array:
        bits = _bits(random, runs, limit, truth).astype(np.float64)
        bits[(bits > 0) & (random.random(bits.shape) < 1 / 3)] = np.nan
        return counted(bits, UPPER_WORST)

    return _any_candidate(lambda: draws().astype(bool), limit)


def machine_and_people(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """A classifier measures all, people a quarter by a coin; it misses half of the unsafe answers."""

    def draws() -> Array:
        people = _bits(random, runs, limit, truth)
        machine = np.where(people, random.random(people.shape) < 0.5, random.random(people.shape) < 0.02)
        return with_people(machine, people, random.random(people.shape) < 0.25, 0.25)

    shown = TestedLimit("cost", limit, 0.05, 0.05, "rate", 1, 0.0, 1.0, "people", people=0.25).to_unit(limit)
    return _any(lambda number: _ever(draws(), shown, _level(number)))


def logit(random: Random, runs: int, limit: float, truth: float, beyond: float = 0.0) -> Flags:
    """A logit limit of 0 with C = 2 and 20 labels an answer; the mean cost is `truth - limit` logits above it."""
    tested = TestedLimit("cost", 0.0, 0.05, 0.05, "logit", 20, -2.0, 2.0, "labels")
    shown = tested.to_unit(tested.limit - tested.bias)
    above = (truth - limit) / limit / 2

    def draws() -> Array:
        shape = (runs, DRAWS[limit])
        # a share of 1/5 far up, the others so far down that the mean of the costs, cut at C, is `above`
        costs = np.where(random.random(shape) < 0.2, 2.0 + beyond, (5 * above - 2.0) / 4)
        return scaled(clipped_logit(random.binomial(20, expit(costs)) / 20, 2.0), *tested.ends)

    return _any(lambda number: _ever(draws(), shown, _level(number)))


def logit_beyond_the_clip(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """The same with a fifth of the costs at 5, beyond C = 2: the certificate is about costs cut at C, and says so."""
    return logit(random, runs, limit, truth, beyond=3.0)


def logit_without_its_bias(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """Not what is done: the clipped logit is bet on as if it had no bias (3 labels an answer, C = 5)."""
    above = (truth - limit) / limit / 2

    def ever(number: int) -> Flags:
        shape = (runs, DRAWS[limit])
        costs = np.where(random.random(shape) < 0.2, 4.0, (5 * above - 4.0) / 4)
        estimates = clipped_logit(random.binomial(3, expit(costs)) / 3, 5.0)
        return _ever(scaled(estimates, -5.0, 5.0), 0.5, _level(number))

    return _any(ever)


def mixture(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """Twelve rounds of 64 draws; a round's policy follows from the draws before, its rates average to the truth."""
    false = np.zeros(runs, dtype=bool)
    for run in range(runs):
        up = bool(random.random() < 0.5)
        rows = []
        for half in range(6):
            rates = (0.4 * truth, 1.6 * truth) if up else (1.6 * truth, 0.4 * truth)
            rows += [random.random(64) < rate for rate in rates]
            up = bool(np.mean(rows[-1]) > truth) if half % 2 else not up
        path = mixture_log_wealth(np.asarray(rows, dtype=np.float64), limit)
        false[run] = bool((path[1::2] >= -math.log(_level(1))).any())  # after two rounds the mean is the truth
    return false


def mixtures_of_a_run(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """Twelve rounds of 64 prompts out of 128, drawn as a run draws them; entries are the mixture and the tails from
    rounds 4 and 7. Every other policy does badly on the prompts that the round before asked."""
    below = cumulated(np.ones(PROMPTS))
    return _rounds_of_a_run(random, runs, limit, truth, lambda: drawn_at(below, random.random((runs, 2, 64))))


def mixtures_in_epochs(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """Not what is done: every prompt comes once in two rounds, so that no draw meets what was asked before."""

    def asked() -> NDArray[np.int64]:
        return np.argsort(random.random((runs, PROMPTS)), axis=1).reshape(runs, 2, 64)

    return _rounds_of_a_run(random, runs, limit, truth, asked)


def two_limits(random: Random, runs: int, limit: float, truth: float) -> Flags:
    """Two limits with deltas of 5 and 10 %, each at its own level; the policy breaks the second, not the first."""

    def ever(number: int) -> Flags:
        kept, broken = (_bits(random, runs, limit, rate) for rate in (0.0, truth))
        first = _certified(kept, limit, Allocation().level(DELTA, number))
        return first & _certified(broken, limit, Allocation().level(OTHER_DELTA, number))

    return _any(ever)


SCENARIOS: dict[str, Callable[[Random, int, float, float], Flags]] = {
    "one label": one_label,
    "best by its round": best_by_its_round,
    "late labels": late_labels,
    "several answers and labels": several_answers_and_labels,
    "rare severe harm": rare_severe_harm,
    "source that fails": source_that_fails,
    "machine and people": machine_and_people,
    "logit": logit,
    "logit beyond the clip": logit_beyond_the_clip,
    "mixture": mixture,
    "mixtures of a run": mixtures_of_a_run,
    "two limits": two_limits,
}
CONTROLS: dict[str, Callable[[Random, int, float, float], Flags]] = {
    "labels that chose": labels_that_chose,
    "late labels left out": late_labels_left_out,
    "logit without its bias": logit_without_its_bias,
    "mixtures in epochs": mixtures_in_epochs,
}
"""Ways that are wrong, to see that the simulation finds them; their share of false runs should exceed the bound."""
ON_A_LOGIT = ("logit", "logit beyond the clip", "logit without its bias")
"""Their limit is 0 logits; the true mean lies 0, 0.05 and 0.5 above it, and candidates get as many draws as at 5 %."""


# --- parts of the simulations -------------------------------------------------------------------------------------


def _level(number: int) -> float:
    return Allocation().level(DELTA, number)


def _any(ever: Callable[[int], Flags]) -> Flags:
    """Runs in which any of the twelve candidates is certified."""
    return np.logical_or.reduce([ever(number) for number in range(1, CANDIDATES + 1)])


def _any_candidate(draws: Callable[[], Any], limit: float, *, cumulated: bool = False) -> Flags:
    return _any(lambda number: _certified(draws(), limit, _level(number), cumulated=cumulated))


def _bits(random: Random, runs: int, limit: float, rate: float) -> Flags:
    return np.asarray(random.random((runs, DRAWS[limit]), dtype=np.float32) < rate)


def _certified(draws: Any, limit: float, level: float, *, cumulated: bool = False) -> Flags:
    """Which runs are certified at any look. Right-or-wrong draws need counts alone; `cumulated`: they are counts."""
    if draws.dtype == np.float64:
        return _ever(draws, limit, level)
    failures = draws if cumulated else np.cumsum(draws, axis=1, dtype=np.int32)
    return np.asarray((failures <= allowed_failures(limit, level, draws.shape[1])).any(axis=1))


def _ever(draws: Array, limit: float, level: float) -> Flags:
    """Runs that are certified at any look. The logarithm lies below its tangent, so log E_t is at most the steepest
    tangent's slope times (t d - sum Z): only runs in which that reaches log(1 / level) are worth the full sum."""
    steepest = float(np.max(bets_below(limit) / (1 - bets_below(limit) * limit)))
    lead = np.max(limit * np.arange(1, draws.shape[1] + 1) - np.cumsum(draws, axis=1), axis=1)
    certified = np.asarray(lead * steepest >= -math.log(level))
    certified[certified] = (log_wealth(draws[certified], limit) >= -math.log(level)).any(axis=1)
    return certified


def _rounds_of_a_run(
    random: Random, runs: int, limit: float, truth: float, asked: Callable[[], NDArray[np.int64]]
) -> Flags:
    """Rounds in pairs, `asked` gives both rounds' prompts [runs, 2, n]: half the true rate on every prompt, then one
    and a half times it, on the prompts that were asked before as far as they hold it."""
    rows: list[Array] = []
    means: list[Array] = []
    for _ in range(6):
        prompts = asked()
        seen = np.zeros((runs, PROMPTS), dtype=bool)
        np.put_along_axis(seen, prompts[:, 0, :], True, axis=1)
        share, wanted = seen.mean(axis=1, keepdims=True), 1.5 * truth
        bad = np.minimum(1.0, wanted / share)
        rates = np.where(seen, bad, (wanted - bad * share) / (1.0 - share))
        for chances in (np.full((runs, PROMPTS), 0.5 * truth), rates):
            met = np.take_along_axis(chances, prompts[:, len(rows) % 2, :], axis=1)
            rows.append((random.random(met.shape) < met).astype(np.float64))
            means.append(chances.mean(axis=1))
    table, mean = np.stack(rows, axis=1), np.stack(means, axis=1)
    false = np.zeros(runs, dtype=bool)
    for number, first in enumerate((1, 4, 7), start=1):
        path = mixture_log_wealth(table[:, first - 1 :], limit)
        so_far = np.cumsum(mean[:, first - 1 :], axis=1) / np.arange(1, path.shape[1] + 1)
        false |= ((path >= -math.log(_level(number))) & (so_far >= limit - 1e-9)).any(axis=1)
    return false


def _with_delays(bits: Flags, random: Random) -> NDArray[np.int32]:
    """Draws that count as failures at each look: the unsafe ones, and all whose label is out."""
    runs, draws = bits.shape
    late = random.integers(0, 21, bits.shape)  # whether an unsafe label is out or in, it counts as 1
    arrival = np.minimum(np.arange(draws) + late, draws) + np.arange(runs)[:, None] * (draws + 1)
    safe = np.bincount(arrival[~bits], minlength=runs * (draws + 1)).reshape(runs, draws + 1)
    return np.asarray(np.arange(1, draws + 1) - np.cumsum(safe, axis=1)[:, :draws], dtype=np.int32)


def _chosen(random: Random, runs: int, limit: float, truth: float, *, pooled: bool) -> Flags:
    rounds = random.random((runs, CANDIDATES, 288), dtype=np.float32) < truth
    order = np.argsort(rounds.sum(axis=2) + random.random((runs, CANDIDATES)), axis=1)

    def draws(number: int) -> Flags:
        own, fresh = rounds[np.arange(runs), order[:, number - 1]], _bits(random, runs, limit, truth)
        return np.concatenate([own, fresh], axis=1) if pooled else fresh

    return _any(lambda number: _certified(draws(number), limit, _level(number)))


# --- the command --------------------------------------------------------------------------------------------------


def share_of_false(name: str, limit: float, factor: float, runs: int) -> float:
    """Share of the runs of one cell that got a false certificate; the cell's name decides its random numbers."""
    simulate = {**SCENARIOS, **CONTROLS}[name]
    random = generator_of(20, "certificates", _key(name, limit, factor))
    false = sum(
        int(simulate(random, min(CHUNK, runs - done), limit, factor * limit).sum()) for done in range(0, runs, CHUNK)
    )
    return false / runs


def bound(name: str, runs: int) -> float:
    """delta + 2 standard errors."""
    delta = OTHER_DELTA if name == "two limits" else DELTA
    return delta + 2 * math.sqrt(delta * (1 - delta) / runs)


def table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """The cells as a Markdown table: a row per way and limit, a column per true value."""
    lines = ["| simulated | limit | " + " | ".join(f"{factor:g} × limit" for factor in FACTORS) + " | may be |"]
    lines.append("|---|---|" + "---|" * (len(FACTORS) + 1))
    for name in (*SCENARIOS, *CONTROLS):
        for limit in _limits(name):
            shares = [cells.get(_key(name, limit, factor)) for factor in FACTORS]
            if all(shares):
                said = " | ".join(f"{100 * share['false']:.2f} %" for share in shares if share)
                runs = max(share["runs"] for share in shares if share)
                allowed = "a control" if name in CONTROLS else f"{100 * bound(name, runs):.2f} %"
                shown = "0 logits" if name in ON_A_LOGIT else f"{100 * limit:g} %"
                lines.append(f"| {name} | {shown} | {said} | {allowed} |")
    return "\n".join(lines) + "\n"


def _limits(name: str) -> tuple[float, ...]:
    return (0.05,) if name in ON_A_LOGIT else tuple(DRAWS)


def _key(name: str, limit: float, factor: float) -> str:
    return f"{name} {limit:g} {factor:g}"


def main() -> int:
    """1 if any cell is above its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    cells: dict[str, dict[str, Any]] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    failed = []
    for name in (*SCENARIOS, *CONTROLS):
        for limit in _limits(name):
            for factor in FACTORS:
                key = _key(name, limit, factor)
                if asked.only not in key:
                    continue
                if cells.get(key, {}).get("runs") != asked.runs:
                    began = time.monotonic()
                    share = share_of_false(name, limit, factor, asked.runs)
                    cells[key] = {"false": share, "runs": asked.runs, "seconds": round(time.monotonic() - began, 1)}
                    asked.out.write_text(json.dumps(cells, indent=1) + "\n")
                print(f"{key}: {100 * cells[key]['false']:.2f} % of {asked.runs} runs", flush=True)
                if name in SCENARIOS and cells[key]["false"] > bound(name, asked.runs):
                    failed.append(key)
    print(table(cells))
    print(f"above the bound: {', '.join(failed)}" if failed else "every cell is within its bound")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
