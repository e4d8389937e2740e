"""From rows of runs to tables: means over seeds with intervals. Pure functions; nothing is drawn here."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pddpo_lab.compare.suite import MethodsTable, Suite, SweepTable

Row = Mapping[str, Any]
Value = Callable[[Row], float | None]
Values = Callable[[Row], Sequence[float]]


@dataclass(frozen=True)
class Mean:
    """Mean over seeds and its standard error (None with fewer than two): no bounds of these numbers are stated, so no
    interval is."""

    value: float
    error: float | None
    count: int


@dataclass(frozen=True)
class Column:
    """One number of a run. `best` says which end is better, if one is."""

    key: str
    title: str
    value: Value
    best: str = ""
    each: Values | None = None
    """Its single observations, where a run has many: the error is over those of all seeds together."""


def result(name: str) -> Value:
    """A key of result.json."""
    return lambda row: row["result"].get(name)


def budget(name: str) -> Value:
    return lambda row: row["budget"].get(name)


def own(name: str) -> Value:
    return lambda row: row.get(name)


def judged(name: str, title: str) -> Column:
    """What the judges of real text say: a number per question, or per pair."""

    def each(row: Row) -> Sequence[float]:
        values: Sequence[float] = (row.get("judged") or {}).get(name, ())
        return values

    def value(row: Row) -> float | None:
        values = each(row)
        return sum(values) / len(values) if values else None

    return Column(name, title, value, each=each)


def harmlessness(row: Row) -> float | None:
    """Minus the expected cost, exact."""
    return None if row.get("cost_last") is None else -float(row["cost_last"])


def multiplier_error(row: Row) -> float | None:
    """Distance of the mean multiplier of the second half of the rounds from the optimum's."""
    trace, best = row["trace"]["multiplier"], row["result"].get("multiplier_optimum")
    half = trace[len(trace) // 2 :]
    return abs(sum(half) / len(half) - best) if half and best is not None else None


def estimate_error(row: Row) -> float | None:
    """Root mean square of (estimated - exact) violation over the rounds."""
    pairs = zip(row["trace"]["estimate"], row["trace"]["g"], strict=True)
    errors = [(estimate - row["threshold"] - g) ** 2 for estimate, g in pairs if g is not None]
    return math.sqrt(sum(errors) / len(errors)) if errors else None


METHOD_COLUMNS = (
    Column("gap_last", "gap", result("gap_last"), "low"),
    Column("gap_mixture", "gap of the mixture", result("gap_mixture"), "low"),
    Column("f_last", "f", result("f_last")),
    Column("g_last", "g", result("g_last")),
    Column("reward_last", "helpfulness", own("reward_last")),
    Column("harmlessness", "harmlessness", harmlessness),
    Column("multiplier", "λ", result("multiplier")),
    Column("kl_last", "KL to π_ref", own("kl_last")),
    Column("off_support_last", "off the language", result("off_support_last")),
    Column("pairs", "pairs", budget("pairs")),
    Column("labels", "labels", budget("labels")),
)
SWEEP_COLUMNS = (
    Column("harmlessness", "harmlessness", harmlessness),
    Column("reward_last", "helpfulness", own("reward_last")),
    Column("gap_last", "gap", result("gap_last")),
    Column("g_last", "g", result("g_last")),
    Column("multiplier", "λ", result("multiplier")),
    Column("multiplier_error", "|λ − λ*|, 2nd half", multiplier_error),
    Column("estimate_error", "error of the cost estimate (RMS)", estimate_error),
    Column("labels", "labels", budget("labels")),
)
JUDGED_COLUMNS = (
    judged("harmlessness", "harmlessness over π_ref"),
    judged("helpfulness", "helpfulness over π_ref"),
    judged("agrees_safer", "agrees on safer"),
    judged("agrees_better", "agrees on better"),
    judged("kl", "KL to π_ref"),
    judged("length", "tokens"),
    Column("multiplier", "λ", result("multiplier_next")),
    Column("pairs", "pairs", budget("pairs")),
    Column("labels", "labels", budget("labels")),
)
BUDGET_COLUMNS = (
    Column("pairs", "pairs", budget("pairs")),
    Column("labels", "labels", budget("labels")),
    Column("tokens", "tokens generated", budget("tokens")),
    Column("fits", "fits", budget("fits")),
    Column("optimiser_steps", "optimiser steps", budget("optimiser_steps")),
    Column("fit_seconds", "seconds in fits", budget("fit_seconds")),
    Column("sampling_seconds", "seconds of sampling", budget("sampling_seconds")),
    Column("peak_mib", "peak memory, MiB", own("peak_mib")),
)
POINTS = {
    "reference": "reference",
    "covered_only": "oracle on covered answers",
    "optimum": "π*, the best possible",
}


def mean_of(values: Sequence[float | None]) -> Mean | None:
    """Mean with its standard error; None without a number. mean_of([1, 2, 3]) = 2 ± 0.577"""
    known = np.array([value for value in values if value is not None and math.isfinite(value)], dtype=np.float64)
    if len(known) == 0:
        return None
    if len(known) == 1:
        return Mean(float(known[0]), None, 1)
    return Mean(float(known.mean()), float(known.std(ddof=1)) / math.sqrt(len(known)), len(known))


def cells(rows: Sequence[Row], arm: str, columns: Sequence[Column]) -> list[Mean | None]:
    """One mean per column over the seeds of an arm, or over its observations of all seeds."""
    mine = [row for row in rows if row["arm"] == arm]
    return [
        mean_of(
            [column.value(row) for row in mine] if column.each is None else [x for r in mine for x in column.each(r)]
        )
        for column in columns
    ]


def is_judged(rows: Sequence[Row]) -> bool:
    """Whether these are runs on real text, of which judges speak and no world."""
    return any(row.get("judged") for row in rows)


def judges(rows: Sequence[Row]) -> dict[str, Mean | None]:
    """How often the reward and the cost judge agree with labels of pairs that they have not seen, over the seeds."""
    one_per_seed = {row["seed"]: row["judged"]["scorers"] for row in rows if row.get("judged")}.values()
    return {kind: mean_of([hit for hits in one_per_seed for hit in hits[kind]]) for kind in ("reward", "cost")}


def ranked(rows: Sequence[Row], table: MethodsTable) -> list[str]:
    """The table's arms that have a run, lowest gap first."""
    gaps = {arm: cells(rows, arm, METHOD_COLUMNS[:1])[0] for arm in table.arms}
    there = [arm for arm in table.arms if any(row["arm"] == arm for row in rows)]
    return sorted(there, key=lambda arm: math.inf if (gap := gaps[arm]) is None else gap.value)


def points(rows: Sequence[Row]) -> dict[str, list[Mean | None]]:
    """f, g and gap of what every world knows: reference, oracle on covered answers, optimum."""
    one_per_seed = {row["seed"]: row["result"] for row in rows}.values()
    return {
        name: [mean_of([result.get(f"{kind}_{name}") for result in one_per_seed]) for kind in ("gap", "f", "g")]
        for name in POINTS
    }


def trend(rows: Sequence[Row], table: SweepTable, column: Column) -> list[tuple[float, Mean]]:
    """A column along a sweep: (value of the setting, mean)."""
    means = [(at, cells(rows, arm, [column])[0]) for at, arm in zip(table.at, table.arms, strict=True)]
    return [(at, mean) for at, mean in means if mean is not None]


def dynamics(rows: Sequence[Row], arm: str) -> list[tuple[int, float]]:
    """Multiplier by round, mean over seeds."""
    traces = [row["trace"]["multiplier"] for row in rows if row["arm"] == arm]
    shortest = min((len(trace) for trace in traces), default=0)
    return [(index + 1, float(np.mean([trace[index] for trace in traces]))) for index in range(shortest)]


def csv_of_runs(suite: Suite, rows: Sequence[Row]) -> str:
    """One line per arm and seed, with every number of the page."""
    known = JUDGED_COLUMNS if is_judged(rows) else (*METHOD_COLUMNS, *SWEEP_COLUMNS)
    columns = {column.key: column for column in (*known, *BUDGET_COLUMNS)}
    lines: list[list[Any]] = [["arm", "label", "algorithm", "seed", *columns]]
    for row in rows:
        values = [column.value(row) for column in columns.values()]
        lines.append([row["arm"], suite.arms[row["arm"]].label, row["algorithm"], row["seed"], *values])
    return _csv(lines)


def csv_of_traces(rows: Sequence[Row]) -> str:
    """One line per arm, seed and round: multiplier, estimate, exact violation and gap."""
    names = ("round", "multiplier", "next", "estimate", "standard_error", "g", "gap")
    lines: list[list[Any]] = [["arm", "seed", *names]]
    for row in rows:
        values = zip(*(row["trace"][name] for name in names), strict=True)
        lines += [[row["arm"], row["seed"], *value] for value in values]
    return _csv(lines)


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [["" if value is None else value for value in line] for line in lines]
    )
    return out.getvalue()
