"""The report's section on the data and labels of a run: rows that it does not use, and what more labels would buy."""

from __future__ import annotations

from pddpo_ray.driver.offline_setup import LEFT_OUT
from pddpo_ray.report.run_data import RunData
from pddpo_ray.report.sections.theory import half_width
from pddpo_ray.report.text import escape, number, table
from pddpo_ray.theory.estimates.estimate_interval import interval_warning


def labels(run: RunData) -> str:
    """Rows of the files that are left out, labels so far, and the width of the cost's interval with more of them."""
    return _left_out(run) + _budget(run)


def _left_out(run: RunData) -> str:
    stored = next((entry.payload for entry in run.phases if entry.phase == LEFT_OUT), None) or {}
    lines = "".join(f"<li>{escape(why)}: {number(count, f'left_out/{why}')}</li>" for why, count in stored.items())
    return f"<p>Good rows of the files that the run does not use:</p><ul>{lines}</ul>" if lines else ""


def _budget(run: RunData) -> str:
    pairs = sum(item.pairs for item in run.labels.values())
    text = (
        f"<p>Used so far: {number(run.safety_labels, 'safety_labels')} safety labels, and"
        f" {number(pairs, 'labelled_pairs')} pairs labelled for helpfulness and for harm.</p>"
    )
    if not run.steps:
        return text
    estimate, limit = run.steps[-1].estimate, run.limits[0]
    rows = [
        [
            f"× {factor}",
            number(estimate.responses * factor, "answers"),
            number(estimate.responses * factor * estimate.labels_each, "labels"),
            f"± {number(width, 'half_width', shown=limit.text(width))}",
        ]
        for factor in (1, 2, 4, 16)
        for width in [half_width(run, factor)]
    ]
    warning = interval_warning(estimate)
    return (
        text
        + table(["answers per round", "answers", "labels a round", f"95 % interval of {escape(limit.name)}"], rows)
        + (f"<p>{escape(warning)}</p>" if warning else "")
    )
