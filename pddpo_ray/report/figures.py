"""The charts of a run: which metrics go into which picture. A picture without data is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pddpo_ray.driver.result import WALL
from pddpo_ray.limits.quantities import Amount
from pddpo_ray.report.charts import Dot, Level, Line, line_chart, plane, stacked_bars
from pddpo_ray.report.run_data import RunData, ShownLimit

POLICY, MIXTURE, OPTIMUM, OFFLINE, COVERED, REFERENCE, ENGINE = 1, 2, 3, 4, 5, 6, 7
POINT_STYLE = {
    "reference": ("reference (before training)", REFERENCE, "R"),
    "offline": ("offline PD-DPO, for comparison", OFFLINE, "O"),
    "covered_only": ("oracle on covered answers", COVERED, "C"),
    "mixture": ("mixture of all rounds", MIXTURE, "M"),
    "last": ("last policy", POLICY, "L"),
    "optimum": ("π*, the best possible policy", OPTIMUM, "★"),
}
PHASES_SHOWN = 6


@dataclass(frozen=True)
class Curves:
    """A picture of metrics over the rounds: `metrics` by their names in the legend; every second line is dashed."""

    title: str
    detail: str
    y_label: str
    metrics: dict[str, str]
    colors: Sequence[int] = (POLICY, MIXTURE)
    from_zero: bool = True
    levels: Sequence[Level] = ()

    def draw(self, run: RunData) -> str:
        entries = enumerate(zip(self.metrics.items(), self.colors, strict=False))
        lines = [Line(name, run.series(metric), color, index % 2 == 1) for index, ((name, metric), color) in entries]
        lines = _told_apart(lines)
        include = [0.0] if self.from_zero else []
        return line_chart(self.title, self.detail, lines, levels=self.levels, include=include, y_label=self.y_label)


def _told_apart(lines: Sequence[Line]) -> list[Line]:
    """The lines; those with equal points would hide each other, so they become one with all names."""
    apart: list[Line] = []
    for line in lines:
        twin = next((index for index, other in enumerate(apart) if other.points == line.points), None)
        if twin is None:
            apart.append(line)
        else:
            apart[twin] = replace(apart[twin], name=f"{apart[twin].name} and {line.name}")
    return apart


OFF_GRAMMAR = Curves(
    "Text outside the grammar",
    "Off-grammar mass: the probability of text that the world's grammar cannot write.",
    "off-grammar mass",
    {"off-grammar mass": "exact/off_support"},
    (COVERED,),
)
CURVES = (
    Curves(
        "Held-out and own reward",
        "Gain over the reference in standard deviations of its answers. Where the own reward rises and the held-out "
        "one falls, the policy has found a flaw of the reward model.",
        "gain, sd",
        {"held-out reward": "scorecard/reward_held_out_gain", "the run's own": "scorecard/reward_own_gain"},
    ),
    Curves(
        "Wins against the reference",
        "Share of comparisons with the reference's answers that a held-out scorer decides for the policy.",
        "share",
        {"wins": "scorecard/win_rate"},
        (ENGINE,),
        levels=[Level("even", 0.5, REFERENCE)],
    ),
    Curves(
        "Distance from the reference",
        "KL divergence from the reference per answer, of the policy's own answers.",
        "nats",
        {"KL": "scorecard/kl"},
        (COVERED,),
    ),
)
OF_THEORY = (
    Curves(
        "Do the fits learn the truth?",
        "Slope of the learned reward and cost on the true ones; 1 is perfect.",
        "slope",
        {"reward": "fit/slope_reward", "cost": "fit/slope_cost"},
        from_zero=False,
        levels=[Level("perfect", 1.0, OPTIMUM)],
    ),
    Curves(
        "Exploration: what is still uncertain",
        "Mean uncertainty bonus of the candidate answers; it falls as labels arrive.",
        "mean bonus",
        {"reward bonus": "explore/mean_bonus_reward", "cost bonus": "explore/mean_bonus_cost"},
    ),
    Curves(
        "Exploration: information gathered",
        "Log determinant of the design matrix of all labelled pairs.",
        "log det",
        {"log det": "explore/logdet"},
        (COVERED,),
        from_zero=False,
    ),
    Curves(
        "Exploration: candidates at the largest bonus",
        "Share of candidates whose bonus is the largest possible; above 0.2 the bonus no longer tells them apart.",
        "share",
        {"share at the largest bonus": "explore/saturation"},
        (OFFLINE,),
    ),
    Curves(
        "Exploration: effective number of candidates",
        "Effective sample size of the choice among the candidates of a prompt.",
        "answers",
        {"effective sample size": "explore/ess"},
        (ENGINE,),
    ),
)
SPEED = Curves(
    "Sampling speed",
    "Tokens per second of the engines that write the answers.",
    "tokens/s",
    {"tokens/s": "rollout/tokens_per_second"},
    (ENGINE,),
)


def figures(run: RunData) -> str:
    """Each limit by round, what it costs in helpfulness, and the scorecard."""
    planes, costs = zip(*[(_plane(run, limit), _cost(run, limit)) for limit in run.limits], strict=True)
    return row([*costs, *planes, _gap(run), *(curves.draw(run) for curves in CURVES)])


def figures_of_theory(run: RunData) -> str:
    """For researchers: the multiplier, the fits and exploration."""
    return row([_multiplier(run), _off_grammar(run), *(curves.draw(run) for curves in OF_THEORY)])


def figures_of_speed(run: RunData) -> str:
    return row([SPEED.draw(run), _time(run)])


def row(pictures: Sequence[str]) -> str:
    """Pictures side by side; empty if all of them are."""
    drawn = "".join(pictures)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _gap(run: RunData) -> str:
    levels = [
        Level(POINT_STYLE[name][0], gap, POINT_STYLE[name][1])
        for name in ("offline", "covered_only")
        if (gap := run.gap(name)) is not None
    ]
    return Curves(
        "Gap to the best possible policy",
        "Missing helpfulness plus a charge for breaking the limit, (f* − f) + 2ρ max(g, 0); 0 is the best possible.",
        "gap",
        {"policy of the round": "exact/gap_policy", "mixture so far": "exact/gap_mixture"},
        levels=levels,
    ).draw(run)


def _plane(run: RunData, limit: ShownLimit) -> str:
    """One limit and helpfulness, exact where the world is known: a small picture for each limit."""
    dots = [
        Dot(name, limit.axis(value), f, color, mark)
        for key, (name, color, mark) in POINT_STYLE.items()
        if (value := run.value(limit, key)) is not None and (f := run.f(key)) is not None
    ]
    g = dict(run.series(f"{limit.prefix}exact/g_policy"))
    path = [(limit.axis(limit.amount(g[number])), f) for number, f in run.series("exact/f_policy") if number in g]
    side = "right" if limit.limit.at_least else "left"
    return plane(
        f"Helpfulness and {limit.name}",
        f"The limit is {limit.limit}: {side} of the dashed edge it is kept. Higher is more helpful. Exact values.",
        dots,
        Line("policies, round by round", path, POLICY) if len(path) > 1 else None,
        x_label=_axis_label(limit),
        y_label="helpfulness f",
        edge=limit.axis(limit.limit.bound.number),
        good="right" if limit.limit.at_least else "left",
    )


def _axis_label(limit: ShownLimit) -> str:
    """`leaks over private, %`"""
    over = limit.limit.quantity.over
    return ", ".join(filter(None, [limit.name + (f" over {over}" if over else ""), limit.unit]))


def _multiplier(run: RunData) -> str:
    steps = run.steps
    if not steps:
        return ""
    points = [(float(step.round), step.multiplier_before) for step in steps]
    points.append((float(steps[-1].round + 1), steps[-1].multiplier_after))
    levels = []
    if not run.result.get("limits") and run.multiplier_optimum is not None:
        levels.append(Level("λ*, that of the best possible policy", run.multiplier_optimum, OPTIMUM))
    for limit in run.limits if run.result.get("limits") else []:
        if (best := run.stated(limit, "multiplier_optimum")) is not None:
            levels.append(Level(f"λ* of {limit.name}", best, OPTIMUM if not limit.prefix else MIXTURE))
    names = sorted({step.constraint for step in run.dual} - {run.constraint})
    further = [
        Line(f"λ of {name}", [(s.round, s.multiplier_before) for s in run.dual if s.constraint == name], 4 + index)
        for index, name in enumerate(names[:4])
    ]
    return line_chart(
        "Multiplier λ",
        "The price of the limit: what one unit of cost is worth in units of reward. The last point is for the next "
        "round.",
        [Line("λ" if not names else f"λ of {run.constraint}", points, POLICY), *further],
        levels=levels,
        include=[0.0],
        y_label="λ",
    )


def _cost(run: RunData, limit: ShownLimit) -> str:
    """What each round's labels say about one limit, in its unit, and the truth where it is known."""
    estimates = [(float(step.round), run.estimate(limit, step)) for step in run.steps_of(limit)]
    ends = [
        (limit.axis(estimate.low), limit.axis(estimate.high))
        for _, estimate in estimates
        if estimate.low is not None and estimate.high is not None
    ]
    # a chart has an interval in every round or in none: a limit has one measure
    band = ends if len(ends) == len(estimates) else []
    lines = [
        Line("estimate", [(round_, limit.axis(estimate.estimate)) for round_, estimate in estimates], POLICY, band=band)
    ]
    exact = [(float(number), limit.axis(limit.amount(g))) for number, g in run.series(f"{limit.prefix}exact/g_policy")]
    lines.append(Line("exact", exact, OPTIMUM, dashed=True))
    side = "Above" if limit.limit.at_least else "Below"
    learned = any(step.multiplier_after != step.multiplier_before for step in run.steps_of(limit))
    amounts = [Amount(limit.limit.quantity, estimate.estimate) for _, estimate in estimates[:-1]]
    early = learned and any(limit.limit.violation(amount) > 0 for amount in amounts)
    why = " Rounds beyond it came while the limit's weight was being learned." if early else ""
    return line_chart(
        f"Estimates of {limit.name}",
        f"By the labels of each round, with a 95 % interval. {side} the dashed line the limit is kept: {limit.limit}."
        f"{why}",
        lines if estimates else [],
        levels=[Level("limit", limit.axis(limit.limit.bound.number), OFFLINE)],
        y_label=_axis_label(limit),
    )


def _off_grammar(run: RunData) -> str:
    """Empty where no policy leaves the grammar, as on tables."""
    return OFF_GRAMMAR.draw(run) if any(value for _, value in run.series("exact/off_support")) else ""


def _time(run: RunData) -> str:
    rounds, shares = seconds_by_phase(run)
    detail = "Seconds by phase; round 0 is everything before the first."
    return stacked_bars("Where the time goes", detail, rounds, shares, y_label="seconds")


def seconds_by_phase(run: RunData) -> tuple[list[int], list[tuple[str, Sequence[float]]]]:
    """Rounds, and per phase its seconds in each of them; the shortest phases together are `other`.

    What the clock of the round counted beyond its phases is a share of its own.
    """
    by_name: dict[str, dict[int, float]] = {}
    for entry in run.phases:
        in_round = by_name.setdefault(entry.phase, {})
        in_round[entry.round] = in_round.get(entry.round, 0.0) + entry.seconds
    if not by_name:
        return [], []
    numbers = {entry.round for entry in run.phases}
    span = list(range(min(numbers), max(numbers) + 1))
    ranked = sorted(by_name, key=lambda name: (-sum(by_name[name].values()), name))
    other: dict[int, float] = {}
    for name in ranked[PHASES_SHOWN:]:
        other = {number: other.get(number, 0.0) + by_name[name].get(number, 0.0) for number in span}
    inside = {number: sum(phase.get(number, 0.0) for phase in by_name.values()) for number in span}
    # commits, logs, waiting: what the round's clock counted and no phase accounts for
    between = {number: max(run.metrics.get(number, {}).get(WALL, 0.0) - inside[number], 0.0) for number in span}
    shown = {name: by_name[name] for name in ranked[:PHASES_SHOWN]} | {"other": other, "between phases": between}
    shares = [(name, [values.get(number, 0.0) for number in span]) for name, values in shown.items()]
    return span, [(name, values) for name, values in shares if any(values)]
