"""Coverage of every interval that is printed, in one place.

    python -m lab.studies.certificates.coverage [--runs 1000] [--only NAME]

A row is a function that makes intervals, with where they are printed; a cell is a row in one regime: rates of 0.3 to
50 %, 1 to 64 labels an answer, 32 to 1,000 answers, logits within 2 to 8, skewed scores, and a mean with 2 % of its
values at +20. In each simulated run the interval either holds the truth or not; its share may fall 2 points short of
the level, and by 2 standard errors. Finished cells are kept in --out, so a broken study continues where it was.

`tests/unit/bench/test_coverage.py` holds that no module makes an interval by a function that has no row here.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, logit

from pddpo_ray.limits.drawn import Drawn, audited, estimated, logits
from pddpo_ray.limits.sources import asked_first, chosen_for
from pddpo_ray.records import Array, CostEstimate
from pddpo_ray.theory.certificates.certificate import lower_bound, upper_bound
from pddpo_ray.theory.estimates.cost_estimate import (
    Factors,
    MeasuredAnswer,
    answers_behind,
    ends_by_draws,
    estimate_from_shares,
    estimates_on_sets,
    mean_with_error,
    means_by_people_alone,
)
from pddpo_ray.theory.estimates.estimate_interval import interval
from pddpo_ray.theory.intervals import bounded_interval, clopper_pearson, mean_interval, rate_interval
from pddpo_ray.theory.seeds import generator_of

RESULTS = Path(__file__).parent / "coverage.json"
LEVEL, SLACK = 0.95, 0.02
RATES, COUNTS = (0.003, 0.02, 0.1, 0.5), (32, 200, 1000)
MEAN_LOW, MEAN_HIGH, AUDITED = -2.0, 20.0, 24
Random = np.random.Generator
Ends = tuple[float | None, float | None] | None
Regime = tuple[Any, ...]


# --- what is measured ------------------------------------------------------------------------------------------------


def chances(random: Random, rate: float, cost_max: float, count: int, *, skewed: bool) -> Array:
    """Chances of a label "unsafe": all alike, or those of a few answers at C and of the others at -C. [n]"""
    low, high = float(expit(-cost_max)), float(expit(cost_max))
    rate = min(max(rate, low), high)
    if not skewed:
        return np.full(count, rate)
    return np.where(random.random(count) < (rate - low) / (high - low), high, low)


def scores(random: Random, kind: str, count: int) -> tuple[Array, float]:
    """Numbers within [-2, 20] and their expectation. -> [n]"""
    match kind:
        case "2 % at +20":
            return np.where(random.random(count) < 0.02, 20.0, -1.0), 20 * 0.02 - 0.98
        case "skewed":
            return -2.0 + 22.0 * random.beta(0.05, 1.0, count), -2.0 + 22.0 * 0.05 / 1.05
        case "two ends":
            return np.where(random.random(count) < 0.3, 20.0, -2.0), 20 * 0.3 - 2 * 0.7
        case _:
            return random.uniform(0.9, 1.1, count), 1.0


SCORES = ("2 % at +20", "skewed", "two ends", "narrow")


# --- rows: (random numbers, regime) -> interval and truth -------------------------------------------------------------


def rate_of_a_round(random: Random, regime: Regime) -> tuple[Ends, float]:
    """A round's unsafe rate."""
    rate, labels, count, skewed = regime
    own = chances(random, rate, 8.0, count, skewed=skewed)
    shares = random.binomial(labels, own) / labels
    return interval(estimate_from_shares(shares, labels_each=labels, cost_max=8.0, mode="unsafe_rate")), rate


def logit_of_a_round(random: Random, regime: Regime) -> tuple[Ends, float]:
    """A round's mean clipped logit."""
    rate, labels, count, skewed, bound = regime
    own = chances(random, rate, bound, count, skewed=skewed)
    shares = random.binomial(labels, own) / labels
    low, high = float(expit(-bound)), float(expit(bound))
    inside = min(max(rate, low), high)
    truth = bound * (2 * (inside - low) / (high - low) - 1) if skewed else float(logit(inside))
    return interval(estimate_from_shares(shares, labels_each=labels, cost_max=bound)), truth


def mean_of_a_round(random: Random, regime: Regime) -> tuple[Ends, float]:
    """A round's mean within stated bounds; both answers to a prompt are alike."""
    kind, count = regime
    values, truth = scores(random, kind, count // 2)
    low, high = ends_by_draws(values, values, (MEAN_LOW, MEAN_HIGH)) or (None, None)
    return interval(replace(_by_summary(values), low=low, high=high)), truth


def mean_by_summary(random: Random, regime: Regime) -> tuple[Ends, float]:
    """The same where value and standard error alone are known, or draws do not weigh the same."""
    kind, count = regime
    values, truth = scores(random, kind, count // 2)
    return interval(_by_summary(values)), truth


def _by_summary(values: Array) -> CostEstimate:
    value, error = mean_with_error(values)
    return CostEstimate(value, error, 2 * len(values), 1, "cost_model", bounds=(MEAN_LOW, MEAN_HIGH))


def rate_with_missing_labels(random: Random, regime: Regime) -> tuple[Ends, float]:
    """People skip unsafe answers four times as often as safe ones."""
    rate, labels, count = regime
    unsafe = random.random((count, labels)) < rate
    skipped = random.random(unsafe.shape) < np.where(unsafe, 0.2, 0.05)
    low, high = (unsafe & ~skipped).mean(axis=1), (unsafe | skipped).mean(axis=1)
    safest, worst = (estimate_from_shares(s, labels_each=labels, cost_max=8.0, mode="unsafe_rate") for s in (low, high))
    error = max(safest.standard_error, worst.standard_error)
    return interval(replace(worst, standard_error=error, missing=worst.value - safest.value)), rate


def machine_and_people(random: Random, regime: Regime) -> tuple[Ends, float]:
    """People see the unsure answers and 24 others; the machine calls every answer safe, or a fifth of them unsafe."""
    rate, unsure, count, wrong = regime
    unsafe = (random.random(count) < rate).astype(np.float64)
    scores_of_machine = np.abs(random.normal(2.5, 0.7, count)) * np.where(random.random(count) < wrong, 1.0, -1.0)
    return _by_people(random, expit(scores_of_machine), unsafe, unsure), rate


def audit_of_a_round(random: Random, regime: Regime) -> tuple[Ends, float]:
    """People see 24 of a round's answers; a machine misses half of the unsafe ones and calls a fifth of the rest so."""
    rate, count = regime
    truth = random.random(count) < rate
    machine = np.where(truth, random.random(count) < 0.5, random.random(count) < 0.2).astype(np.float64)
    return _by_people(random, machine, truth.astype(np.float64), 0), rate


def _by_people(random: Random, machine: Array, truth: Array, unsure: int) -> Ends:
    """A rate by a machine, corrected by people who see the `unsure` answers and 24 others."""
    count, margins = len(machine), np.abs(machine - 0.5).tolist()
    shown = asked_first("audited", margins, unsure, unsure + AUDITED, int(random.integers(2**31)))
    chance = np.array([shown.get(row, 0.0) for row in range(count)])
    people = np.where(chance > 0, truth, 0.0)
    measured = [
        MeasuredAnswer(
            1, (0,), (0,), str(row), machine[[row]], np.zeros(1), np.zeros(1, dtype=bool),
            people=people[[row]], chance=chance[[row]],
        )
        for row in range(count)
    ]  # fmt: skip
    factors: Factors = {(0,): np.ones(1)}
    found = estimates_on_sets(measured, factors, np.ones(1))
    value, error, seen = float(found.means[0]), float(found.standard_errors[0]), answers_behind(measured, 0, factors)
    unconfirmed = max(0.0, value - float(means_by_people_alone(measured)[0]))
    return interval(CostEstimate(value, error, seen, 1, "unsafe_rate", missing=unconfirmed))


def bias_of_a_machine(random: Random, regime: Regime) -> tuple[Ends, float]:
    """How much more often the machine says yes than people do, from the audited answers."""
    rate, count = regime
    truth = random.random(count) < rate
    machine = np.where(truth, random.random(count) < 0.5, random.random(count) < 0.2)
    differences = machine.astype(np.float64) - truth
    return bounded_interval(differences, -1.0, 1.0), 0.2 * (1 - rate) - 0.5 * rate


def rate_in_a_file(random: Random, regime: Regime) -> tuple[Ends, float]:
    """A rate in a file of answers, one or two answers to a prompt."""
    rate, each, count = regime
    prompts = [str(index // each) for index in range(count)]
    found = estimated(Drawn((random.random(count) < rate).astype(np.float64), 0.0, 1.0), prompts, 0.05, LEVEL)
    return (found.low, found.high), rate


def mean_in_a_file(random: Random, regime: Regime) -> tuple[Ends, float]:
    """A mean within stated bounds in a file of answers."""
    kind, count = regime
    values, truth = scores(random, kind, count)
    found = estimated(Drawn(values, MEAN_LOW, MEAN_HIGH), [str(index) for index in range(count)], 1.0, LEVEL)
    return (found.low, found.high), truth


def logit_in_a_file(random: Random, regime: Regime) -> tuple[Ends, float]:
    """A logit in a file of answers; the interval is widened by the bias of so few labels."""
    rate, labels, count, bound = regime
    inside = min(max(rate, float(expit(-bound))), float(expit(bound)))
    shares = random.binomial(labels, inside, count) / labels
    found = estimated(logits(shares, labels, bound), [str(index) for index in range(count)], 0.0, LEVEL)
    return (found.low, found.high), float(logit(inside))


def audit_in_a_file(random: Random, regime: Regime) -> tuple[Ends, float]:
    """A rate in a file by a machine that people audit."""
    rate, count = regime
    truth = (random.random(count) < rate).astype(np.float64)
    machine = np.where(truth > 0, random.random(count) < 0.5, random.random(count) < 0.2).astype(np.float64)
    asked = np.zeros(count, dtype=bool)
    asked[chosen_for("audited", count, AUDITED, int(random.integers(2**31)))] = True
    drawn = audited(machine, np.where(asked, truth, np.nan), asked, 0.0, 1.0)
    found = estimated(drawn, [str(index) for index in range(count)], 0.05, LEVEL)
    return (found.low, found.high), rate


def mean_of_an_evaluation(random: Random, regime: Regime) -> tuple[Ends, float]:
    """A mean over prompts within stated bounds, two answers to each."""
    kind, count = regime
    values, truth = scores(random, kind, count // 2)
    found = mean_interval(np.repeat(values, 2), np.repeat(np.arange(count // 2), 2).tolist(), (MEAN_LOW, MEAN_HIGH))
    return (None if found is None else (found.low, found.high)), truth


def share_of_trials(random: Random, regime: Regime) -> tuple[Ends, float]:
    """A share of right-or-wrong trials."""
    rate, count = regime
    found = rate_interval(int(random.binomial(count, rate)), count)
    return (None if found is None else (found.low, found.high)), rate


def exact_share(random: Random, regime: Regime) -> tuple[Ends, float]:
    """The same by its own function."""
    rate, count = regime
    return clopper_pearson(int(random.binomial(count, rate)), count), rate


def bound_of_a_certificate(random: Random, regime: Regime) -> tuple[Ends, float]:
    """Both anytime bounds of a certificate under a limit of 5 %, after all draws."""
    rate, count = regime
    draws = (random.random(count) < rate).astype(np.float64)
    tail = (1.0 - LEVEL) / 2.0
    return (lower_bound(draws, 0.05, tail), upper_bound(draws, 0.05, tail)), rate


def mean_of_a_certificate(random: Random, regime: Regime) -> tuple[Ends, float]:
    """The same of a mean, scaled by its bounds, under a limit of 1."""
    kind, count = regime
    values, truth = scores(random, kind, count)
    span, tail = MEAN_HIGH - MEAN_LOW, (1.0 - LEVEL) / 2.0
    units, limit = (values - MEAN_LOW) / span, (1.0 - MEAN_LOW) / span
    low, high = lower_bound(units, limit, tail), upper_bound(units, limit, tail)
    return (MEAN_LOW + span * low, MEAN_LOW + span * high), truth


@dataclass(frozen=True)
class Row:
    """One way to make an interval, where it is printed, and in which regimes it is simulated."""

    function: str
    printed: str
    simulate: Callable[[Random, Regime], tuple[Ends, float]]
    regimes: Sequence[Regime]


LABELS, BOUNDS = (1, 8, 64), (2.0, 5.0, 8.0)
OF_RATES = tuple(product(RATES, COUNTS))
OF_MEANS = tuple(product(SCORES, COUNTS))
OF_ESTIMATES = "estimate_interval.interval"
EVERYWHERE = "log, annotation page, lead's table, terminal, result.json, report"
ROWS: Mapping[str, Row] = {
    "rate": Row(OF_ESTIMATES, EVERYWHERE, rate_of_a_round,
                tuple(product(RATES, LABELS, COUNTS, (False, True)))),
    "logit": Row(
        OF_ESTIMATES, EVERYWHERE, logit_of_a_round,
        tuple(product(RATES, LABELS, COUNTS[:2], (False, True), BOUNDS)),
    ),
    "mean": Row(OF_ESTIMATES, EVERYWHERE, mean_of_a_round, OF_MEANS),
    "mean, by its summary": Row(OF_ESTIMATES, EVERYWHERE, mean_by_summary, OF_MEANS),
    "rate, labels missing": Row(
        OF_ESTIMATES, EVERYWHERE, rate_with_missing_labels, tuple(product(RATES, (1, 8), COUNTS))
    ),
    "machine and people": Row(
        OF_ESTIMATES, EVERYWHERE, machine_and_people, tuple(product(RATES, (6, 24), (96, 288), (0.0, 0.2)))
    ),
    "audit of a round": Row(OF_ESTIMATES, EVERYWHERE, audit_of_a_round, tuple(product(RATES, (48, 240)))),
    "bias of a machine": Row("intervals.bounded_interval", "log, terminal, result.json, report", bias_of_a_machine,
                             tuple(product(RATES, (24, 96, 400)))),
    "rate in a file": Row("limits.drawn.estimated", "pddpo limits check", rate_in_a_file,
                          tuple(product(RATES, (1, 2), COUNTS))),
    "mean in a file": Row("limits.drawn.estimated", "pddpo limits check", mean_in_a_file, OF_MEANS),
    "logit in a file": Row("limits.drawn.estimated", "pddpo limits check", logit_in_a_file,
                           tuple(product(RATES, LABELS, COUNTS[:2], BOUNDS))),
    "audit in a file": Row("limits.drawn.estimated", "pddpo limits check", audit_in_a_file,
                           tuple(product(RATES, (48, 240)))),
    "mean of an evaluation": Row("intervals.mean_interval", "pddpo evaluate, scorecard, model card",
                                 mean_of_an_evaluation, OF_MEANS),
    "share of trials": Row("intervals.rate_interval", "pddpo evaluate", share_of_trials, OF_RATES),
    "exact share": Row("intervals.clopper_pearson", "scorers' accuracy, agreement, groups of a certificate",
                       exact_share, OF_RATES),
    "bound of a certificate": Row("certificate.upper_bound, lower_bound", "certificate, endpoint, report",
                                  bound_of_a_certificate, OF_RATES),
    "mean of a certificate": Row("certificate.upper_bound, lower_bound", "certificate, endpoint, report",
                                 mean_of_a_certificate, OF_MEANS),
}  # fmt: skip


# --- the command ------------------------------------------------------------------------------------------------------


def coverage(name: str, regime: Regime, runs: int) -> float:
    """Share of the runs of one cell whose interval holds the truth; the cell's name decides its random numbers."""
    random, simulate = generator_of(20, "coverage", key_of(name, regime)), ROWS[name].simulate
    hits = 0
    for _ in range(runs):
        ends, truth = simulate(random, regime)
        low, high = ends or (None, None)
        if low is None or high is None:
            raise RuntimeError(f"{name} {regime}: no interval")
        # ends that meet the truth but for rounding hold it
        hits += low - 1e-9 <= truth <= high + 1e-9
    return hits / runs


def least_allowed(runs: int) -> float:
    """The level less 2 points, less 2 standard errors of this number of runs."""
    wanted = LEVEL - SLACK
    return wanted - 2.0 * math.sqrt(wanted * (1.0 - wanted) / runs)


def key_of(name: str, regime: Regime) -> str:
    return f"{name}: {', '.join(map(str, regime))}"


def table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per way to make an interval, with its least coverage and where that is."""
    lines = ["| interval of | made by | printed in | regimes | least coverage | in |", "|---|---|---|---|---|---|"]
    for name, row in ROWS.items():
        mine = {one: cells[key]["covered"] for one in row.regimes if (key := key_of(name, one)) in cells}
        if mine:
            worst = min(mine, key=lambda one: mine[one])
            where = ", ".join(map(str, worst))
            lines.append(
                f"| {name} | `{row.function}` | {row.printed} | {len(mine)} | {100 * mine[worst]:.1f} % | {where} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    """1 if any cell covers less than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    cells: dict[str, dict[str, Any]] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    failed = []
    for name in [name for name in ROWS if asked.only in name]:
        for regime in ROWS[name].regimes:
            key = key_of(name, regime)
            if cells.get(key, {}).get("runs") != asked.runs:
                cells[key] = {"covered": coverage(name, regime, asked.runs), "runs": asked.runs}
            if cells[key]["covered"] < least_allowed(asked.runs):
                failed.append(key)
        asked.out.write_text(json.dumps(cells, indent=1) + "\n")
        print(f"{name}: {len(ROWS[name].regimes)} regimes", flush=True)
    print(table(cells))
    print(f"below {100 * (LEVEL - SLACK):g} %: {'; '.join(failed)}" if failed else "every interval covers")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
