"""The report's section about reward and cost models: how often they were right, and where their costs lie."""

from __future__ import annotations

from pddpo_ray.report.run_data import RunData
from pddpo_ray.report.text import escape, number, table
from pddpo_ray.theory.estimates.score_spread import SHARES


def scorers(run: RunData) -> str:
    """Held-out accuracies with their intervals, and quantiles of the costs by round; empty without models."""
    return _right(run) + _costs(run)


def _right(run: RunData) -> str:
    results = run.result.get("scorers") or {}
    rows = []
    for kind, counts in (results.get("held_out") or {}).items():
        share = counts["right"] / counts["trials"] if counts["trials"] else None
        shown = {name: f"{100 * counts[name]:.3g} %" for name in ("low", "high")}
        warning = (results.get("at_chance") or {}).get(kind)
        rows.append(
            [
                escape(kind),
                number(counts["trials"], f"scorers/{kind}/trials"),
                number(share, f"scorers/{kind}/accuracy", shown=f"{100 * (share or 0.0):.3g} %"),
                *(number(counts[end], f"scorers/{kind}/{end}", shown=shown[end]) for end in ("low", "high")),
                '<span class="bad">not better than chance</span>' if warning else "better than chance",
            ]
        )
    if not rows:
        return ""
    note = (
        "<p>Of comparisons that no model learned from; 95 % intervals are exact (Clopper-Pearson). A cost model that is"
        " not better than chance moves no multiplier.</p>"
    )
    return note + table(["model", "comparisons", "right", "from", "to", ""], rows)


def _costs(run: RunData) -> str:
    rounds = [(round_, values) for round_, values in sorted(run.metrics.items()) if "scorer/cost_q50" in values]
    if not rounds:
        return ""
    rows = [
        [
            "before round 1" if round_ == 0 else str(round_),
            *(number(values.get(f"scorer/cost_{name}"), f"scorer/cost_{name}", round_) for name in SHARES),
            number(
                values.get("scorer/cost_at_clip"),
                "scorer/cost_at_clip",
                round_,
                f"{100 * values.get('scorer/cost_at_clip', 0.0):.3g} %",
            ),
        ]
        for round_, values in rounds
    ]
    heads = ["round", *(f"{100 * share:g} % quantile" for share in SHARES.values()), "at the clip"]
    bound = "" if run.cost_max is None else f" C is {number(run.cost_max, 'dual.cost_max')}."
    note = f"<p>Scores of the cost model. Labels are clipped to [-C, C] before they count.{bound}</p>"
    return note + table(heads, rows)
