"""The report's sections on labels (rows left out, what more of them would buy) and on people: what they were asked, how
they agreed, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from pddpo_ray.config.sections.feedback import MINUTES_PER_LABEL
from pddpo_ray.driver.offline_setup import LEFT_OUT
from pddpo_ray.limits.of_recipe import stated_of
from pddpo_ray.report.run_data import RunData
from pddpo_ray.report.sections.theory import half_width
from pddpo_ray.report.text import escape, number, seconds, table
from pddpo_ray.theory.estimates.estimate_interval import interval_warning


def labels(run: RunData) -> str:
    """Rows of the files that are left out, labels so far, and the width of the cost's interval with more of them."""
    return _left_out(run) + _more_labels(run)


def _left_out(run: RunData) -> str:
    stored = next((entry.payload for entry in run.phases if entry.phase == LEFT_OUT), None) or {}
    lines = "".join(f"<li>{escape(why)}: {number(count, f'left_out/{why}')}</li>" for why, count in stored.items())
    return f"<p>Good rows of the files that the run does not use:</p><ul>{lines}</ul>" if lines else ""


def _more_labels(run: RunData) -> str:
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


PURPOSES = {"safety": "safe or unsafe", "compare": "pairs"}
PHASES = {
    "measure-answers": "the round's answers",
    "measure-pairs": "explored pairs",
    "measure-offline": "offline pairs",
}
ASK_PEOPLE = ("people", "mixed")


def people(run: RunData) -> str:
    """Label budget and agreement, round by round; empty where nobody was asked."""
    settings = run.recipe.get("feedback") or {}
    of_limits = _of_limits(run)
    if settings.get("kind") not in ASK_PEOPLE and not of_limits:
        return ""
    labels = _total(run, "safety_labels"), _total(run, "compare_labels"), _sum(run, of_limits, "labels")
    if not any(labels):
        return "<p>People are asked, but no batch is complete yet.</p>"
    return _budget(run, *labels) + _agreement(run) + _batches(run)


def _of_limits(run: RunData) -> dict[str, str]:
    """Batches of limits that people measure or audit, by their purpose, with what they are called here."""
    names = [limit.limit.name for limit in stated_of(run.recipe) if limit.asks_people]
    return {f"{phase}-{name}": f"{name}, {words}" for name in names for phase, words in PHASES.items()}


def _sum(run: RunData, purposes: Iterable[str], name: str) -> float:
    return sum(_total(run, f"{purpose}_{name}") for purpose in purposes)


def _total(run: RunData, name: str) -> float:
    return sum(values.get(f"people/{name}", 0.0) for values in run.metrics.values())


def _budget(run: RunData, safety: float, pairs: float, limits: float) -> str:
    """Labels asked and used so far, and a person's time for them."""
    planned = (safety + limits + 2 * pairs) * MINUTES_PER_LABEL / 60.0
    purposes = [*PURPOSES, *_of_limits(run)]
    worked, waited = (_sum(run, purposes, f"{kind}_seconds") for kind in ("worked", "waited"))
    rows = [
        ["safe-or-unsafe labels", number(safety, "people_safety_labels")],
        ["labels for limits", number(limits, "people_limit_labels")],
        ["pairs compared (helpfulness, harm, and safety of both)", number(pairs, "people_pairs")],
        ["refusals (skipped, flagged, cannot tell)", number(_refusals(run), "people_refusals")],
        [
            "pairs not learned from: their answer contradicts itself",
            number(_total(run, "compare_contradictory"), "people_slips"),
        ],
        ["labels that a lead decided to do without", number(_missing(run), "people_missing")],
        ["pairs on which a lead decided", number(_total(run, "compare_adjudicated"), "people_adjudicated")],
        ["people's time for them, by the server's clock", seconds(worked)],
        ["the plan's time for them, by the recipe's minutes per label", f"{number(planned, 'people_hours')} h"],
        ["time that the run waited for people, without the time it was parked", seconds(waited)],
    ]
    return "<h3>Label budget</h3>" + table(["what people gave", "so far"], rows, kind="words")


def _missing(run: RunData) -> float:
    return _sum(run, [*PURPOSES, *_of_limits(run)], "missing")


def _refusals(run: RunData) -> float:
    return _sum(run, [*PURPOSES, *_of_limits(run)], "refusals")


def _agreement(run: RunData) -> str:
    """One line in words: the mean over the rounds with the rounds' spread."""
    mean, share, rounds = _mean_agreement(run, "safety")
    if not rounds:
        return "<p>Agreement needs questions with two labels or more; there are none.</p>"
    return (
        f"<p>On safety people agree with Krippendorff's α = {number(mean, 'people_alpha')} on average over "
        f"{number(rounds, 'people_rounds')} rounds (1 is perfect, 0 is chance); two labels of one answer are the "
        f"same in {number(100 * share, 'people_pairwise')} % of the cases. Near the limit there is no right answer: "
        "where safe and unsafe are about equally likely, people disagree who err nowhere, and α is low.</p>"
        + _agreement_on_pairs(run)
    )


def _agreement_on_pairs(run: RunData) -> str:
    """The same of the pairs that several people compared, about which answer is more harmful."""
    mean, share, rounds = _mean_agreement(run, "compare")
    if not rounds:
        return "<p>No pair was compared by several people: their agreement is unknown.</p>"
    return (
        f"<p>On which of two answers is more harmful α = {number(mean, 'people_pair_alpha')} on average over the pairs "
        f"that several people compared in {number(rounds, 'people_pair_rounds')} rounds; two labels of one pair "
        f"are the same in {number(100 * share, 'people_pair_pairwise')} % of the cases.</p>"
    )


def _mean_agreement(run: RunData, purpose: str) -> tuple[float, float, int]:
    """Means of alpha and of the share of equal labels over the rounds that have an alpha, and how many these are."""
    alphas = [value for _, value in run.series(f"people/{purpose}_alpha")]
    shares = [value for _, value in run.series(f"people/{purpose}_pairwise")]
    return sum(alphas) / max(len(alphas), 1), sum(shares) / max(len(shares), 1), len(alphas)


def _batches(run: RunData) -> str:
    rows = []
    for round_, values in sorted(run.metrics.items()):
        for purpose, words in {**PURPOSES, **_of_limits(run)}.items():
            figures = {
                name.removeprefix(f"people/{purpose}_"): value
                for name, value in values.items()
                if name.startswith(f"people/{purpose}_")
            }
            if figures:
                rows.append(
                    [
                        number(round_, "round"),
                        words,
                        number(figures.get("labels"), f"people/{purpose}_labels", round_),
                        number(figures.get("annotators"), f"people/{purpose}_annotators", round_),
                        number(figures.get("refusals"), f"people/{purpose}_refusals", round_),
                        _with_interval(figures, purpose, round_),
                        number(figures.get("pairwise"), f"people/{purpose}_pairwise", round_),
                        seconds(figures.get("seconds", 0.0)),
                    ]
                )
    headings = ["round", "question", "labels", "people", "refusals", "α (95 %)", "same label", "answered in"]
    return f"<details><summary>All {len(rows)} batches</summary>{table(headings, rows)}</details>"


def _with_interval(values: Mapping[str, float], purpose: str, round_: int) -> str:
    alpha = values.get("alpha", math.nan)
    if not math.isfinite(alpha):
        return "–"
    text = number(alpha, f"people/{purpose}_alpha", round_)
    if "alpha_low" in values and "alpha_high" in values:
        low = number(values["alpha_low"], f"people/{purpose}_alpha_low", round_)
        high = number(values["alpha_high"], f"people/{purpose}_alpha_high", round_)
        text += f" ({low} to {high})"
    return text
