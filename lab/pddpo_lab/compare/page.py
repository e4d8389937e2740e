"""compare.html: one file with every figure and table of a suite, the commands behind it and the data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pddpo_lab.compare import tables
from pddpo_lab.compare.facts import FACTS
from pddpo_lab.compare.suite import MethodsTable, Suite, SweepTable
from pddpo_lab.compare.tables import Column, Mean
from pddpo_ray.report.charts import Dot, Level, Line, color_of, line_chart, plane
from pddpo_ray.report.shell import page
from pddpo_ray.report.text import MISSING, escape, number, short, table

Row = Mapping[str, Any]
GREY, GREEN = 6, 3

INTRODUCTION = (
    "<p>f is the expected reward minus β times the divergence from the reference, g the expected cost minus the limit "
    "(at most 0 is allowed), <em>gap</em> (f* − f) + 2ρ max(g, 0): 0 is the optimum, and violating the limit cannot "
    "lower it. Helpfulness is the expected reward, harmlessness minus the expected cost. All of them are exact sums "
    "with the world's true scores, of the last policy unless the column says otherwise. The oracle on covered answers "
    "is the best policy that uses only answers of the offline pairs; it bounds methods on tables that do not explore, "
    "and a network can get below it. ± is one standard error over seeds.</p>"
)
JUDGED = (
    "<p>Real text has no truth: there is no f, g or gap here. Helpfulness is the mean score of a reward model, "
    "harmlessness minus that of a cost model, both of answers to prompts that no run has seen and as differences from "
    "the reference's answers to the same prompts, in logits. Both judges are models of their own: trained on the pairs "
    "of those prompts alone, or ones that the suite names. A policy agrees on the better (the safer) answer of such a "
    "pair where it raises its probability more than the other's; 0.5 is chance. ± is one standard error over "
    "questions, or pairs, of all seeds together; it does not hold what other judges would say.</p>"
)


def render(suite: Suite, rows: Sequence[Row], failures: Sequence[Row] = (), command: str = "") -> str:
    """The page as text. `failures` are rows with an `error`; `command` is what made the page."""
    sections = [(entry.key, entry.title, _table(entry, suite, rows)) for entry in suite.tables]
    sections += [
        ("multiplier", "The multiplier, round by round", _dynamics(suite, rows)),
        ("methods", "What the methods assume, promise and keep", _facts(rows)),
        ("budgets", "What they spent", _budgets(suite, rows)),
        ("failures", "Runs that failed", _failures(failures)),
        ("commands", "Commands", _commands(suite, command)),
        ("data", "Data", _data(suite, rows)),
    ]
    seeds = len({row["seed"] for row in rows})
    header = (
        f"<h1>Methods side by side: {escape(suite.name)}</h1><p class=lede>{escape(suite.about)}</p>"
        f"<p>{len(rows)} runs, {seeds} seed{'s' if seeds != 1 else ''}.</p>"
        f"{JUDGED + _judges(rows) if tables.is_judged(rows) else INTRODUCTION}"
    )
    return page(suite.name, "pddpo compare", header, sections, "the journals of the runs")


# --- tables and their pictures ---------------------------------------------------------------------------------------


def _table(entry: MethodsTable | SweepTable, suite: Suite, rows: Sequence[Row]) -> str:
    about = f"<p>{escape(entry.about)}</p>" if entry.about else ""
    body = _methods(entry, suite, rows) if isinstance(entry, MethodsTable) else _sweep(entry, rows)
    return about + body if body else ""


def _methods(entry: MethodsTable, suite: Suite, rows: Sequence[Row]) -> str:
    """Arms from the lowest gap to the highest, with their plane."""
    order = tables.ranked(rows, entry)
    if not order:
        return ""
    if tables.is_judged(rows):
        return _judged(entry, suite, rows, order)
    columns = tables.METHOD_COLUMNS
    values = {arm: tables.cells(rows, arm, columns) for arm in order}
    marks = {arm: str(index) for index, arm in enumerate(order, 1)}
    best = _best(columns, values)
    lines = [
        [
            marks[arm],
            escape(suite.arms[arm].label),
            *[_cell(mean, f"{entry.key}/{arm}/{column.key}", arm in best.get(column.key, ())) for column, mean in
              zip(columns, values[arm], strict=True)],
        ]
        for arm in order
    ]  # fmt: skip
    known = tables.points(rows)
    for name, (gap, f, g) in known.items():
        rest = [""] * (len(columns) - 4)
        cells = [_cell(gap, f"{entry.key}/{name}/gap"), "", _cell(f, f"{entry.key}/{name}/f"),
                 _cell(g, f"{entry.key}/{name}/g"), *rest]  # fmt: skip
        lines.append(["", f"<i>{escape(tables.POINTS[name])}</i>", *cells])
    dots = [
        Dot(suite.arms[arm].label, -g.value, f.value, color_of(index), marks[arm])
        for index, arm in enumerate(order)
        if (f := values[arm][2]) is not None and (g := values[arm][3]) is not None
    ]
    signs = {"reference": "R", "covered_only": "C", "optimum": "★"}
    dots += [
        Dot(tables.POINTS[name], -g.value, f.value, GREEN if name == "optimum" else GREY, signs[name])
        for name, (_, f, g) in known.items()
        if f is not None and g is not None
    ]
    drawn = plane(
        f"{entry.title}: the plane",
        "Means over seeds. Right of the dashed edge the limit is kept; higher is better under the limit.",
        dots,
        None,
        x_label="limit minus expected cost (−g)",
        y_label="f",
    )
    return _table_with_plane(columns, lines, drawn)


def _judged(entry: MethodsTable, suite: Suite, rows: Sequence[Row], order: Sequence[str]) -> str:
    """Arms in the suite's order, with the plane that the judges see."""
    columns = tables.JUDGED_COLUMNS
    lines, dots = [], [Dot("reference", 0.0, 0.0, GREY, "R")]
    for index, arm in enumerate(order):
        label, mark = suite.arms[arm].label, str(index + 1)
        means = tables.cells(rows, arm, columns)
        cells = [_cell(mean, f"{entry.key}/{arm}/{column.key}") for column, mean in zip(columns, means, strict=True)]
        lines.append([mark, escape(label), *cells])
        harmless, helpful = means[:2]
        if harmless is not None and helpful is not None:
            dots.append(Dot(label, harmless.value, helpful.value, color_of(index), mark))
    drawn = plane(
        f"{entry.title}: the plane",
        "Means over questions and seeds; the dashed edge is the reference.",
        dots,
        None,
        x_label="harmlessness over the reference's",
        y_label="helpfulness over the reference's",
    )
    return _table_with_plane(columns, lines, drawn)


def _table_with_plane(columns: Sequence[tables.Column], lines: list[list[str]], drawn: str) -> str:
    headings = ["", "method", *[column.title for column in columns]]
    return f'{table(headings, lines)}<div class="charts">{drawn}</div>'


def _judges(rows: Sequence[Row]) -> str:
    """How far the judges can be believed."""
    said = [
        f"the {kind} judge with {_cell(mean, f'judges/{kind}')}"
        for kind, mean in tables.judges(rows).items()
        if mean is not None
    ]
    words = " and ".join(said)
    return f"<p>Shares of the labels of the runs' own pairs that the judges agree with: {words}.</p>" if said else ""


def _sweep(entry: SweepTable, rows: Sequence[Row]) -> str:
    columns = tables.JUDGED_COLUMNS if tables.is_judged(rows) else tables.SWEEP_COLUMNS
    name = entry.setting.rpartition(".")[2].replace("_", " ")
    lines = []
    for at, arm in zip(entry.at, entry.arms, strict=True):
        means = tables.cells(rows, arm, columns)
        if any(mean is not None for mean in means):
            shown = [_cell(mean, f"{arm}/{column.key}") for column, mean in zip(columns, means, strict=True)]
            lines.append([number(at, entry.setting), *shown])
    if not lines:
        return ""
    ordered = sorted(tables.trend(rows, entry, columns[0]))
    helpful = dict(tables.trend(rows, entry, columns[1]))
    dots = [
        Dot(f"{name} {at:g}", safe.value, helpful[at].value, color_of(index), chr(ord("a") + index))
        for index, (at, safe) in enumerate(ordered)
        if at in helpful
    ]
    path = Line(f"{name}, rising", [(dot.x, dot.y) for dot in dots], GREY)
    drawn = plane(
        f"{entry.title}: the plane",
        "Expected reward over minus the expected cost, means over seeds.",
        dots,
        path,
        x_label="harmlessness",
        y_label="helpfulness",
    )
    return f'{table([escape(name), *[c.title for c in columns]], lines)}<div class="charts">{drawn}</div>'


def _dynamics(suite: Suite, rows: Sequence[Row]) -> str:
    """λ of the arms that the suite names, and for adaLag what moved it."""
    lines = [
        Line(suite.arms[arm].label, tables.dynamics(rows, arm), color_of(index))
        for index, arm in enumerate(suite.dynamics)
    ]
    best = tables.mean_of([row["result"].get("multiplier_optimum") for row in rows])
    levels = [] if best is None else [Level("λ*", best.value, GREEN)]
    drawn = line_chart(
        "λ that governed each round", "Means over seeds.", lines, levels=levels, y_label="λ", include=[0.0]
    )
    lag = next((row for row in rows if row["algorithm"] == "pd-dpo-adalag"), None)
    if lag is not None:
        trace = lag["trace"]
        drawn += line_chart(
            "adaLag: the window's cost moves λ",
            f"Seed {lag['seed']}. Its rule raises λ while the window's mean cost is above the limit, else lowers it.",
            [
                Line("cost of the window", list(zip(trace["round"], trace["estimate"], strict=True)), 2),
                Line("λ after the round", list(zip(trace["round"], trace["next"], strict=True)), 1),
            ],
            levels=[Level("limit", lag["threshold"], GREY)],
        )
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _facts(rows: Sequence[Row]) -> str:
    """One row per method of the suite; memory is the largest that a run of it took above the resting process."""
    lines = []
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        fact = FACTS[algorithm]
        peaks = [row["peak_mib"] for row in rows if row["algorithm"] == algorithm and row.get("peak_mib") is not None]
        memory = number(max(peaks), f"peak/{algorithm}", shown=f"{max(peaks):.0f}") if peaks else MISSING
        words = (fact.name, fact.learns_from, fact.multiplier, fact.guarantee, fact.trained, fact.resident)
        lines.append([*map(escape, words), memory])
    headings = ["method", "learns from", "λ", "guarantee", "models trained", "resident", "peak memory, MiB"]
    note = (
        "<p>Resident counts models in memory while one of them trains; log-probabilities of frozen policies are "
        "columns of numbers. Peak memory is measured: the process's high-water mark during a run, above what it held "
        "when the run's parts, which the runs of a seed share, were there.</p>"
    )
    return note + table(headings, lines, kind="words") if lines else ""


def _budgets(suite: Suite, rows: Sequence[Row]) -> str:
    columns = tables.BUDGET_COLUMNS
    there = [arm for arm in suite.arms if any(row["arm"] == arm for row in rows)]
    lines = [
        [
            escape(suite.arms[arm].label),
            f"<code>{escape(arm)}</code>",
            *[
                _cell(mean, f"budget/{arm}/{column.key}")
                for column, mean in zip(columns, tables.cells(rows, arm, columns), strict=True)
            ],
        ]
        for arm in there
    ]
    return table(["method", "arm", *[column.title for column in columns]], lines) if lines else ""


def _failures(failures: Sequence[Row]) -> str:
    lines = [[str(row["seed"]), escape(row["arm"]), escape(row["error"])] for row in failures]
    return table(["seed", "arm", "why"], lines, kind="words") if lines else ""


def _commands(suite: Suite, command: str) -> str:
    """What makes this page, and what makes each run alone."""
    made = f"<p>This page:</p><pre>{escape(command)}</pre>" if command else ""
    keys = " ".join(f"{key}=SEED" for key in suite.seed_keys)
    lines = []
    for arm in suite.arms.values():
        settings = " ".join(shlex.quote(text) for text in (*arm.overrides, *suite.more))
        lines.append(f"# {arm.name}\npddpo train {arm.recipe} {settings} cluster.mode=in-process {keys}")
    listing = escape("\n".join(lines))
    return f"{made}<details><summary>Each run by itself</summary><pre>{listing}</pre></details>"


def _data(suite: Suite, rows: Sequence[Row]) -> str:
    parts = (
        ("compare.csv: one line per run", tables.csv_of_runs(suite, rows)),
        ("compare-rounds.csv: one line per round", tables.csv_of_traces(rows)),
    )
    return "".join(
        f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>" for title, text in parts
    )


# --- pieces ----------------------------------------------------------------------------------------------------------


def _cell(mean: Mean | None, key: str, bold: bool = False) -> str:
    if mean is None:
        return number(None)
    text = number(mean.value, key)
    if mean.error is not None and mean.error > 0:
        text += f" <small>± {escape(short(mean.error))}</small>"
    return f"<strong>{text}</strong>" if bold else text


def _best(columns: Sequence[Column], values: Mapping[str, Sequence[Mean | None]]) -> dict[str, set[str]]:
    """Arms with the lowest mean in the columns where lower is better."""
    best = {}
    for index, column in enumerate(columns):
        known = {arm: mean.value for arm, means in values.items() if (mean := means[index]) is not None}
        if column.best == "low" and known:
            best[column.key] = {arm for arm, value in known.items() if value == min(known.values())}
    return best
