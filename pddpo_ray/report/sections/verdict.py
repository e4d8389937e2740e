"""The first thing on a report: each limit before, after and stated, whether it is certified, and helpfulness.

A certificate speaks where there is one: an estimate of the same policy's labels is then not judged beside it.
"""

from __future__ import annotations

import numpy as np

from pddpo_ray.certificates.ledger import Entry, TestedLimit
from pddpo_ray.report.run_data import RunData, ShownLimit
from pddpo_ray.report.sections.certificates import STATE, newest
from pddpo_ray.report.text import both_ends, escape, number, short
from pddpo_ray.scorecard.words import FIGURES

MARKS = {"good": "✓", "bad": "✗", "open": "?"}
ESTIMATED = {True: ("good", "estimated to hold"), False: ("bad", "estimated to be broken"), None: ("open", "undecided")}
VERDICT = {"certified": "certified", "rejected": "shown to be broken", "undecided": "not decided by its test"}

Figure = tuple[str, str]
"""What a number is, and its HTML."""


def verdict_strip(run: RunData) -> str:
    """One block per limit and one for helpfulness, each with its numbers before and after training."""
    entry = newest(run)
    tested = {} if entry is None else {limit.name: limit for limit in entry.candidate.limits}
    blocks = [
        _estimate_block(run, limit)
        if entry is None or limit.name not in tested
        else _certificate_block(run, limit, entry, tested)
        for limit in run.limits
    ]
    return f'<section class="verdicts">{"".join(blocks)}{_helpfulness(run)}</section>'


def _block(color: str, verdict: str, title: str, figures: list[Figure], note: str = "") -> str:
    mark = f'<span aria-hidden="true">{MARKS[color]}</span> ' if color in MARKS else ""
    heading = f'<p class="{color}"><b>{mark}{verdict}</b></p>' if verdict else ""
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures if value)
    below = f"<p><small>{note}</small></p>" if note else ""
    return f'<div class="verdict {color}"><h2>{title}</h2>{heading}<dl>{rows}</dl>{below}</div>'


def _title(limit: ShownLimit) -> str:
    key = f"{limit.prefix}said/limit"
    return f"{escape(limit.name)}: {number(limit.limit.bound.number, key, shown=str(limit.limit))}"


def _before(run: RunData, limit: ShownLimit) -> Figure:
    value = run.value(limit, "reference")
    return "before training", "" if value is None else number(value, shown=limit.text(value))


def _exact(run: RunData, limit: ShownLimit) -> Figure:
    g = _released_metric(run, f"{limit.prefix}exact/g_policy")
    value = run.value(limit, "last") if g is None else limit.amount(g)
    key = f"{limit.prefix}exact/value"
    name = f"{_after(run, g)}, by the true scores"
    return name, "" if value is None else number(value, key, shown=limit.text(value))


def _released_metric(run: RunData, metric: str) -> float | None:
    """A metric in the released policy's round; None where that is the last one, nothing is released or it has none."""
    return dict(run.series(metric)[:-1]).get(run.outcome.round or -1)


def _after(run: RunData, released: float | None) -> str:
    """Whose number stands after training: what users get, else the last round's policy."""
    last = released is None and run.outcome.round != run.finished
    return "last policy" if last else "released policy"


def _certificate_block(run: RunData, limit: ShownLimit, entry: Entry, tested: dict[str, TestedLimit]) -> str:
    test, finding = tested[limit.name], entry.findings[limit.name]
    draws = test.draws(entry.numbers[limit.name])
    measured = draws[~np.isnan(draws)]
    mean = None if not measured.size else test.stated.cost(test.from_unit(float(measured.mean())))
    low, high = test.between(finding.lower, finding.upper)
    bound = f"at least {low}" if test.at_least else f"at most {high}"
    confidence = f"{100 * (1 - test.delta):.3g} %"
    shown = bound if finding.state == "certified" else f"{low} to {high}"
    key = f"{limit.prefix}certificate"
    return _block(
        STATE[finding.state],
        VERDICT[finding.state],
        _title(limit),
        [
            _before(run, limit),
            _exact(run, limit),
            (
                f"{escape(entry.candidate.policy)}, {short(float(len(draws)))} fresh answers",
                "" if mean is None else number(mean, f"{key}/seen", shown=limit.text(mean)),
            ),
            (f"shown with {confidence} confidence", number(finding.upper, f"{key}/upper", shown=shown)),
            ("measured by", escape(test.measured_by)),
        ],
    )


def _estimate_block(run: RunData, limit: ShownLimit) -> str:
    """By the labels of the released round, else of the last one."""
    steps = {step.round: step for step in run.steps_of(limit)}
    round_ = run.outcome.round if run.outcome.round in steps else max(steps, default=None)
    if round_ is None:
        return _block("soft", "no estimate yet", _title(limit), [_before(run, limit)])
    estimate, key = run.estimate(limit, steps[round_]), f"outcome/{limit.name}"
    color, verdict = ESTIMATED[estimate.kept]
    interval = both_ends((estimate.low, estimate.high), limit.text, key, round_, estimate.no_interval)
    text = None if estimate.unsafe_rate is None else f"{100 * estimate.unsafe_rate:.3g} %"
    return _block(
        color,
        f"not certified; {verdict}",
        _title(limit),
        [
            _before(run, limit),
            _exact(run, limit),
            (
                f"round {round_}, by its own labels",
                number(estimate.estimate, f"{key}/estimate", round_, limit.text(estimate.estimate)),
            ),
            ("95 % interval", interval),
            ("unsafe rate", "" if text is None else number(estimate.unsafe_rate, f"{key}/unsafe_rate", round_, text)),
        ],
    )


def _helpfulness(run: RunData) -> str:
    """f before, after and at best where the world is known, else wins by a held-out scorer; empty without either."""
    released = _released_metric(run, "exact/f_policy")
    before, after, best = run.f("reference"), run.exact("f") if released is None else released, run.f("optimum")
    if after is not None:
        names = (("before training", before), (_after(run, released), after), ("best possible under the limits", best))
        figures = [(name, "" if f is None else number(f)) for name, f in names]
        return _block("soft", "", "helpfulness", figures, "Expected reward less the charge for leaving the reference.")
    figures = run.scorecard[max(run.scorecard)]["figures"] if run.scorecard else {}
    if "win_rate" not in figures:
        return ""
    wins, text = figures["win_rate"], FIGURES["win_rate"].text
    interval = both_ends((wins["low"], wins["high"]), text, "scorecard/win_rate")
    title, value = "wins against the reference, by a held-out scorer", number(wins["value"], shown=text(wins["value"]))
    return _block("soft", "", "helpfulness", [(title, value), ("95 % interval", interval)])
