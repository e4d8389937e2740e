"""verify.html: the gaps of all methods beside the theorem's bound, and every check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pddpo_ray.report.charts import Line, color_of, line_chart
from pddpo_ray.report.shell import page
from pddpo_ray.report.text import escape, number, table
from pddpo_ray.verify.checks import gap_bound
from pddpo_ray.verify.experiments import Curve
from pddpo_ray.worlds.tabular import TabularWorld

SMALLEST = 1e-4
"""The logarithmic axis shows no gap below this one."""


def render(world: TabularWorld, curves: Mapping[str, Curve], checks: Sequence[Mapping[str, Any]]) -> str:
    """The page as text."""
    verdict = {True: '<span class="good">holds</span>', False: '<span class="bad">fails</span>'}
    rows = [
        [
            escape(c["in_words"]),
            escape(c["claim"]),
            number(c["value"], c["claim"]),
            escape(c["reference"]),
            verdict[c["passed"]],
        ]
        for c in checks
    ]
    held = sum(check["passed"] for check in checks)
    header = f"<h1>Formulas and guarantees</h1><p class=lede>{held} of {len(checks)} claims hold.</p>"
    checked = table(["claim", "measured by", "value", "must be", "result"], rows, kind="words")
    sections = [("gaps", "Gaps", f'<div class="wide">{gap_chart(world, curves)}</div>'), ("checks", "Checks", checked)]
    return page("pddpo verify", "pddpo verify", header, sections, "verify.json")


def gap_chart(world: TabularWorld, curves: Mapping[str, Curve]) -> str:
    """Gap of the mixture over the rounds, mean over seeds with two standard errors, and the bound of paper.md §11."""
    lines = []
    for index, curve in enumerate(curves.values()):
        mean = curve.gap.mean(axis=0)
        error = curve.gap.std(axis=0, ddof=1) / np.sqrt(len(curve.gap)) if len(curve.gap) > 1 else 0.0 * mean
        low, high = (np.maximum(edge, SMALLEST).tolist() for edge in (mean - 2 * error, mean + 2 * error))
        band = list(zip(low, high, strict=True)) if len(curve.gap) > 1 else []
        points = list(enumerate(np.maximum(mean, SMALLEST).tolist(), 1))
        lines.append(
            Line(
                curve.method.name, points, color_of(index), index % 2 == 1, band, "mean ± 2 standard errors over seeds"
            )
        )
    horizon = np.unique(np.geomspace(5, max(len(line.points) for line in lines), 60).astype(int)).tolist()
    bound = [(k, gap_bound(world.oracle, first=world.oracle.rho, rounds=k)) for k in horizon]
    lines.append(Line("the theorem's bound for exact fits", bound, 6, dashed=True))
    detail = (
        "Gap of the mixture of all rounds so far, (f* − f) + 2ρ max(g, 0), against rounds; both logarithmic."
        " Runs choose among candidates; the exact draw, from all answers, is what that approximates."
    )
    return line_chart("Gap of the mixture", detail, lines, y_label="gap", log=True)
