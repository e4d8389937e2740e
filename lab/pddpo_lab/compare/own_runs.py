"""`pddpo compare RUN...`: one's own runs side by side, what they released and what they spent on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from pddpo_ray.driver.result import WALL
from pddpo_ray.errors import UserError
from pddpo_ray.report.charts import Level, Line, color_of, line_chart
from pddpo_ray.report.run_data import RunData, ShownLimit, read_run
from pddpo_ray.report.shell import page
from pddpo_ray.report.text import escape, seconds, short, table

PAGE = "compare-runs.html"
GAP = "exact/gap_policy"
NO_LABELS = ("labels/abstained", "labels/failed")
CLOCKS = {"labels": "labels so far", "tokens": "tokens sampled so far", "time": "minutes so far"}
"""What a curve runs over, and the name of its axis."""


def spent(run: RunData) -> dict[str, dict[int, float]]:
    """Labels, tokens and minutes up to the end of each round, those before round 1 included; certificates' are not."""
    rounds = sorted(run.metrics)
    each = {"labels": _labels, "tokens": _tokens, "time": lambda values: values.get(WALL, 0.0) / 60.0}
    return {
        clock: dict(zip(rounds, accumulate(count(run.metrics[number]) for number in rounds), strict=True))
        for clock, count in each.items()
    }


def rows(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """What the table and `--json` say of each run: outcome, limits in their own units, gap, and what it spent."""
    return [
        {
            "run": run.name,
            "method": run.recipe.get("algorithm"),
            "seed": run.recipe.get("seed"),
            "rounds": run.finished,
            "of": run.total,
            "released": run.outcome.policy,
            "certified": bool(run.outcome.certificate),
            "limits": {one.name: f"{one.measured}, {one.stated}" for one in run.outcome.limits},
            "gap": run.metrics.get(run.outcome.round or run.finished, {}).get(GAP),
            "labels": run.result.get("labels_used", round(_end(spent(run)["labels"]))),
            "tokens": round(_end(spent(run)["tokens"])),
            "seconds": run.result.get("seconds", 60.0 * _end(spent(run)["time"])),
        }
        for run in runs
    ]


def compare_runs(folders: Sequence[str], out: Path | None, command: str) -> tuple[Path, list[dict[str, Any]]]:
    """Writes the page beside the first run, or into `out`. -> its path and the rows. UserError for what is no run."""
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"{folder} is no run folder; name run folders alone, or one suite with its settings")
    given = [Path(folder).expanduser().absolute() for folder in folders]
    if len(set(given)) < len(given):
        raise UserError("a run is named twice")
    runs = [read_run(folder) for folder in given]
    target = (out.expanduser().absolute() if out else given[0].parent) / PAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(runs, command), encoding="utf-8")
    return target, rows(runs)


def render(runs: Sequence[RunData], command: str) -> str:
    """The page as text."""
    sections = [("outcome", "What came of them", _table(rows(runs)))]
    sections += [
        (clock, f"By {name}", f'<div class="charts">{"".join(_figures(runs, clock))}</div>')
        for clock, name in CLOCKS.items()
    ]
    sections += [("command", "Command", f"<pre>{escape(command)}</pre>")]
    header = (
        f"<h1>{len(runs)} runs side by side</h1><p>Each number of a limit is an estimate from the labels of the round"
        " that is released (of the last one, where none is), with its 95 % interval. <em>Gap</em> is the exact distance"
        " to the best policy that keeps the limits, where a world is known: 0 is best. One run of a recipe says little"
        " about the recipe: other seeds differ.</p>"
    )
    return page("runs", "pddpo compare", header, sections, "the journals of the runs")


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    headings = ["run", "method", "seed", "rounds", "released", "gap", "labels", "tokens", "time", "limits"]
    cells = [
        [
            escape(row["run"]),
            escape(row["method"]),
            escape(row["seed"]),
            f"{row['rounds']} of {row['of']}",
            escape(_released(row)),
            short(row["gap"]),
            f"{row['labels']:,}",
            f"{row['tokens']:,}",
            seconds(row["seconds"]),
            "<br>".join(escape(f"{name}: {said}") for name, said in row["limits"].items()),
        ]
        for row in lines
    ]
    return table(headings, cells, kind="words")


def _released(row: Mapping[str, Any]) -> str:
    return f"{row['released']}, {'certified' if row['certified'] else 'not certified'}" if row["released"] else "none"


def _figures(runs: Sequence[RunData], clock: str) -> list[str]:
    """The gap, where worlds are known, and the estimate of every limit with its interval."""
    drawn = []
    gaps = [
        Line(run.name, [(used[number], gap) for number, gap in run.series(GAP)], color_of(index))
        for index, run in enumerate(runs)
        if (used := spent(run)[clock])
    ]
    drawn.append(
        line_chart("Gap", "0 is the best possible; one point a round.", gaps, x_label=CLOCKS[clock], include=[0.0])
    )
    names = dict.fromkeys(limit.name for run in runs for limit in run.limits)
    for name in names:
        shared = [(index, run, limit) for index, run in enumerate(runs) for limit in run.limits if limit.name == name]
        lines = [_estimates(index, run, limit, spent(run)[clock]) for index, run, limit in shared]
        bounds = dict.fromkeys((limit.axis(limit.limit.bound.number), str(limit.limit)) for _, _, limit in shared)
        drawn.append(
            line_chart(
                name,
                "Estimates from each round's own labels, with 95 % intervals.",
                lines,
                levels=[Level(said, at, 6) for at, said in bounds],
                x_label=CLOCKS[clock],
                y_label=shared[0][2].unit,
            )
        )
    return [figure for figure in drawn if figure]


def _estimates(index: int, run: RunData, limit: ShownLimit, used: Mapping[int, float]) -> Line:
    found = [(step.round, run.estimate(limit, step)) for step in run.steps_of(limit)]
    found = [(number, one) for number, one in found if number in used]
    ends = [(one.low, one.high) for _, one in found if one.low is not None and one.high is not None]
    return Line(
        run.name,
        [(used[number], limit.axis(one.estimate)) for number, one in found],
        color_of(index),
        band=[(limit.axis(low), limit.axis(high)) for low, high in ends] if len(ends) == len(found) else (),
    )


def _labels(values: Mapping[str, float]) -> float:
    """Each pair has a label of helpfulness and one of harm; measures count one for each answer."""
    counted = {name: value for name, value in values.items() if name.startswith("labels/") and name not in NO_LABELS}
    return sum(value * (2 if name == "labels/pairs" else 1) for name, value in counted.items())


def _tokens(values: Mapping[str, float]) -> float:
    return sum(value for name, value in values.items() if name.startswith("rollout/") and name.endswith("_tokens"))


def _end(values: Mapping[int, float]) -> float:
    return list(values.values())[-1] if values else 0.0
