"""The charts of a run: which metrics go into which picture. A picture without data is left out."""

from __future__ import annotations

from collections.abc import Sequence

from pddpo_ray.loop.result import WALL
from pddpo_ray.report.charts import Band, Dot, Level, Line, line_chart, plane, stacked_bars
from pddpo_ray.report.run_data import RunData
from pddpo_ray.theory.cost_estimate import interval

POLICY, MIXTURE, OPTIMUM, OFFLINE, COVERED, REFERENCE = 1, 2, 3, 4, 5, 6
POINT_STYLE = {
    "reference": ("reference (before)", REFERENCE, "R"),
    "offline": ("offline PD-DPO", OFFLINE, "O"),
    "covered_only": ("best on covered answers (no offline method can beat it)", COVERED, "C"),
    "mixture": ("mixture of all rounds", MIXTURE, "M"),
    "last": ("last policy", POLICY, "L"),
    "optimum": ("π*, the best possible policy", OPTIMUM, "★"),
}
PHASES_SHOWN = 6


def figures(run: RunData) -> list[str]:
    """All charts of the page, in reading order."""
    every = (_gap, _plane, _multiplier, _cost, _off_support, _slopes, _bonus, _logdet, _effective, _time, _speed)
    return [drawn for draw in every if (drawn := draw(run))]


def _gap(run: RunData) -> str:
    levels = [
        Level(POINT_STYLE[name][0].split(" (")[0], gap, POINT_STYLE[name][1])
        for name in ("offline", "covered_only")
        if (gap := run.gap(name)) is not None
    ]
    return line_chart(
        "Gap to the optimum",
        "Gap (f* − f) + 2ρ [g]₊; 0 is the best possible policy.",
        [
            Line("policy of the round", run.series("exact/gap_policy"), POLICY),
            Line("mixture so far", run.series("exact/gap_mixture"), MIXTURE, "6 2"),
        ],
        levels=levels,
        include=[0.0],
        robust=True,
        y_label="gap",
    )


def _plane(run: RunData) -> str:
    dots = [
        Dot(POINT_STYLE[name][0], -point.g, point.f, POINT_STYLE[name][1], POINT_STYLE[name][2])
        for name in POINT_STYLE
        if (point := run.point(name)) is not None
    ]
    g = dict(run.series("exact/g_policy"))
    path = [(-g[number], f) for number, f in run.series("exact/f_policy") if number in g]
    return plane(
        "Harmlessness and helpfulness",
        "Right of the dashed edge the limit is kept; higher is more helpful.",
        dots,
        [Line("policies, round by round", path, POLICY)] if path else [],
        x_label="harmlessness −g (limit minus expected cost)",
        y_label="helpfulness f",
    )


def _multiplier(run: RunData) -> str:
    steps = run.steps
    if not steps:
        return ""
    points = [(float(step.round), step.multiplier_before) for step in steps]
    points.append((float(steps[-1].round + 1), steps[-1].multiplier_after))
    levels = []
    if run.multiplier_optimum is not None:
        levels.append(Level("λ*, the right price", run.multiplier_optimum, OPTIMUM))
    names = sorted({step.constraint for step in run.dual} - {run.constraint})
    further = [
        Line(f"λ of {name}", [(s.round, s.multiplier_before) for s in run.dual if s.constraint == name], 4 + place)
        for place, name in enumerate(names[:4])
    ]
    return line_chart(
        "Price of the limit",
        "The multiplier λ, learned from the labels; the last point is for the next round.",
        [Line("λ" if not names else f"λ of {run.constraint}", points, POLICY), *further],
        levels=levels,
        include=[0.0],
        y_label="λ",
    )


def _cost(run: RunData) -> str:
    steps = run.steps
    limit = run.threshold
    edges = [(float(step.round), *interval(step.estimate)) for step in steps]
    band = [(place, low - limit, high - limit) for place, low, high in edges]
    lines = [Line("estimate from labels", [(s.round, s.estimate.value - limit) for s in steps], POLICY)]
    if steps and steps[-1].estimate.mode != "unsafe_rate":
        lines.append(Line("exact", run.series("exact/g_policy"), OPTIMUM, "4 2"))
    return line_chart(
        "Cost above the limit",
        "Estimate with its 95 % interval; below 0 the limit is kept.",
        lines,
        bands=[Band("95 % interval", band, POLICY)],
        levels=[Level("limit", 0.0, OFFLINE)],
        robust=True,
        y_label="cost − limit",
    )


def _off_support(run: RunData) -> str:
    outside = run.series("exact/off_support")
    if not any(value for _, value in outside):
        return ""  # a table has no outside
    return line_chart(
        "Text outside the language",
        "Mass ⊥ on text that the world's grammar cannot make.",
        [Line("⊥ mass", outside, COVERED)],
        include=[0.0],
        robust=True,
        y_label="⊥ mass",
    )


def _slopes(run: RunData) -> str:
    return line_chart(
        "Do the fits learn the truth?",
        "Slope of implicit reward and cost on the true ones; 1 is perfect.",
        [
            Line("reward", run.series("fit/slope_reward"), POLICY),
            Line("cost", run.series("fit/slope_cost"), MIXTURE, "6 2"),
        ],
        levels=[Level("perfect", 1.0, OPTIMUM)],
        robust=True,
        y_label="slope",
    )


def _bonus(run: RunData) -> str:
    return line_chart(
        "Exploration: what is still uncertain",
        "Mean bonus of the candidates; it falls as labels arrive.",
        [
            Line("reward bonus", run.series("explore/mean_bonus_reward"), POLICY),
            Line("cost bonus", run.series("explore/mean_bonus_cost"), MIXTURE, "6 2"),
        ],
        include=[0.0],
        y_label="mean bonus",
    )


def _logdet(run: RunData) -> str:
    return line_chart(
        "Exploration: information gathered",
        "Log determinant of the design matrix.",
        [Line("log det", run.series("explore/logdet"), COVERED)],
        y_label="log det",
    )


def _effective(run: RunData) -> str:
    return line_chart(
        "Exploration: saturation and ESS",
        "Share of candidates at the largest bonus (alarm above 0.2); effective sample size of the choice.",
        [
            Line("saturation", run.series("explore/saturation"), OFFLINE),
            Line("ESS", run.series("explore/ess"), 7, "6 2"),
        ],
        include=[0.0],
        y_label="share · answers",
    )


def _time(run: RunData) -> str:
    rounds, shares = seconds_by_phase(run)
    return stacked_bars(
        "Where the time goes",
        "Seconds by phase; round 0 is everything before the first.",
        rounds,
        shares,
        y_label="seconds",
    )


def _speed(run: RunData) -> str:
    return line_chart(
        "Sampling speed",
        "Tokens per second of the rollout engines.",
        [Line("tokens/s", run.series("rollout/tokens_per_second"), 7)],
        include=[0.0],
        y_label="tokens/s",
    )


def seconds_by_phase(run: RunData) -> tuple[list[int], list[tuple[str, Sequence[float]]]]:
    """Rounds, and per phase its seconds in each of them; the shortest phases together are `other`.

    What the clock of the round counted beyond its phases is a share of its own.
    """
    rounds = sorted({entry.round for entry in run.phases})
    if not rounds:
        return [], []
    by_name: dict[str, dict[int, float]] = {}
    for entry in run.phases:
        in_round = by_name.setdefault(entry.phase, {})
        in_round[entry.round] = in_round.get(entry.round, 0.0) + entry.seconds
    ranked = sorted(by_name, key=lambda name: (-sum(by_name[name].values()), name))
    span = list(range(rounds[0], rounds[-1] + 1))
    shares: list[tuple[str, Sequence[float]]] = [
        (name, [by_name[name].get(number, 0.0) for number in span]) for name in ranked[:PHASES_SHOWN]
    ]
    rest = ranked[PHASES_SHOWN:]
    if rest:
        shares.append(("other", [sum(by_name[name].get(number, 0.0) for name in rest) for number in span]))
    outside = [_outside(run, number, sum(values[place] for _, values in shares)) for place, number in enumerate(span)]
    if any(outside):
        shares.append(("between phases", outside))
    return span, shares


def _outside(run: RunData, round_: int, inside: float) -> float:
    """Seconds of a round that no phase accounts for: commits, logs, waiting."""
    return max(run.metrics.get(round_, {}).get(WALL, 0.0) - inside, 0.0)
