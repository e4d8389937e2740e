"""The sections of the report below the first screen. Each takes the run and returns HTML, empty if it has no data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import yaml

from pddpo_ray.limits.quantities import Amount
from pddpo_ray.parts.reachable import PHASE as REACHABLE
from pddpo_ray.records import by_prompt
from pddpo_ray.report.figures import POINT_STYLE, figures, figures_of_speed, figures_of_theory
from pddpo_ray.report.run_data import RunData, ShownLimit
from pddpo_ray.report.sections.certificates import certificates
from pddpo_ray.report.sections.people import labels, people
from pddpo_ray.report.sections.scorecard import scorecard
from pddpo_ray.report.sections.scorers import scorers
from pddpo_ray.report.sections.theory import assumptions, rate_so_far
from pddpo_ray.report.text import both_ends, ends, escape, number, prose, seconds, table
from pddpo_ray.text.templates import without_markup

Section = tuple[str, str, Callable[[RunData], str]]
SHOWN = 6
"""Prompts whose answers stand open; a reader unfolds the others."""


def charts(run: RunData) -> str:
    return figures(run) or "<p>No round has numbers yet.</p>"


def endpoints(run: RunData) -> str:
    """f, g and gap of the named policies."""
    shown_limits = run.limits if run.result.get("limits") else []
    rows = [
        [
            escape(POINT_STYLE[name][0]),
            number(point.f, f"f_{name}"),
            *([] if shown_limits else [number(point.g, f"g_{name}")]),
            *(
                number(value, f"{limit.name}/value_{name}", shown=None if value is None else limit.text(value))
                for limit in shown_limits
                for value in [run.value(limit, name)]
            ),
            number(point.gap, f"gap_{name}"),
        ]
        for name in POINT_STYLE
        if (point := run.point(name)) is not None
    ]
    if not rows:
        return ""
    note = (
        "<p>Helpfulness f is the expected reward minus β times the divergence from the reference; violation g is the "
        "expected cost minus the limit, so at most 0 is allowed; the gap is (f* − f) + 2ρ max(g, 0). All are exact "
        "sums over every answer with the world's true scores, which no method sees. The oracle on covered answers is "
        "the best policy that uses only answers of the offline pairs, computed from the true scores. It bounds methods "
        "on tables that do not explore; a network can get below its gap, because it generalises.</p>"
    )
    measured = [f"{escape(limit.name)}, {escape(limit.limit)}" for limit in shown_limits] or ["violation g"]
    return note + table(["policy", "helpfulness f", *measured, "gap"], rows) + _mixture(run)


def _mixture(run: RunData) -> str:
    """A note on a mixture that breaks a limit; empty where it keeps them all or its values are unknown."""
    values = [(limit, value) for limit in run.limits if (value := run.value(limit, "mixture")) is not None]
    broken = [limit for limit, value in values if limit.limit.violation(Amount(limit.limit.quantity, value)) > 0]
    if not broken:
        return ""
    names = ", ".join(escape(limit.name) for limit in broken)
    return (
        f"<p>The mixture draws from every round's policy with equal weight. The theorem is about it; here its early"
        f" rounds break {names}. It is released only with a certificate of its own.</p>"
    )


def limits(run: RunData) -> str:
    """Estimate, multiplier, price and, where they are known, exact values of every limit, each in its own unit."""
    newest = [(limit, steps[-1]) for limit in run.limits if (steps := run.steps_of(limit))]
    if not newest:
        return ""
    rows = []
    for limit, step in newest:
        estimate, name = run.estimate(limit, step), limit.name
        exact = [
            number(value, f"{name}/value_{policy}", shown=None if value is None else limit.text(value))
            for policy in ("last", "mixture")
            for value in [run.value(limit, policy)]
        ]
        rows.append(
            [
                escape(name),
                number(estimate.limit, f"{name}/limit", shown=str(limit.limit)),
                number(estimate.estimate, f"{name}/estimate", step.round, estimate.measured),
                number(step.multiplier_after, f"{name}/multiplier"),
                number(_known_optimum(run, limit), f"{name}/multiplier_optimum"),
                *exact,
            ]
        )
    headings = ["limit on", "limit", "last estimate, 95 % interval", "next λ", "λ*", "exact, last", "exact, mixture"]
    if run.without_truth:
        headings, rows = headings[:4], [row[:4] for row in rows]
    note = "<p>λ is what one unit of the measure is worth in units of the reward" + (
        ".</p>"
        if run.without_truth
        else "; that of the best possible policy is λ*. The gap counts the violations of all limits.</p>"
    )
    return note + table(headings, rows) + _audits(run) + _reachable(run) + _prices(run)


def _reachable(run: RunData) -> str:
    """What choosing among the answers before round 1 reached."""
    stored = next((entry.payload for entry in run.phases if entry.phase == REACHABLE), None)
    if not stored or not stored["limits"]:
        return ""
    rows = [
        [
            escape(limit.name),
            *(number(value, f"{limit.name}/reachable/{key}", shown=limit.text(value)) for key, value in values),
            number(share, f"{limit.name}/prompts_broken", shown=f"{100 * share:.3g} %"),
        ]
        for limit in run.limits
        if limit.name in stored["limits"]  # a limit on the KL is about no answer
        for entry in [stored["limits"][limit.name]]
        for values, share in [([(key, entry[key]) for key in ("best", "together")], entry["prompts_broken"])]
    ]
    head = ["limit on", "reached alone", "reached with the others", "prompts without an answer that keeps it"]
    note = (
        "<p>What choosing among the answers before round 1 reaches, by their measurements. Training can reach what no "
        "answer showed.</p>"
    )
    return f"<h3>Can they be kept?</h3>{note}{table(head, rows)}"


def _known_optimum(run: RunData, limit: ShownLimit) -> float | None:
    value = run.multiplier_optimum if not limit.prefix and not run.result.get("limits") else None
    return run.stated(limit, "multiplier_optimum") if value is None else value


def _audits(run: RunData) -> str:
    """How far off the machines are that people audit."""
    texts = [audit["text"] for limit in run.limits if (audit := run.stated(limit, "audit"))]
    lines = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return (
        f"<p>By people's labels of the same answers, which the estimates are corrected by:</p><ul>{lines}</ul>"
        if texts
        else ""
    )


def _prices(run: RunData) -> str:
    """What each limit costs, and the run's policies to choose from instead."""
    prices = [price["text"] for limit in run.limits if (price := run.stated(limit, "price"))]
    if not prices:
        return ""
    neighbours = [other["text"] for limit in run.limits if (other := run.stated(limit, "neighbour"))]
    items = "".join(f"<li>{prose(text)}</li>" for text in [*prices, *neighbours])
    note = (
        "<p>f* is concave in the limit, so a multiplier times a change is the most that the change gains. The interval "
        "is the spread of the multiplier over the last half of the rounds; what the fits get wrong is not in it.</p>"
    )
    return f"<h3>What the limits cost</h3>{note}<ul>{items}</ul>"


def answers(run: RunData) -> str:
    """The same prompts answered by the reference and by the policy that is shown, with what was measured of each."""
    before, after = by_prompt(run.before), by_prompt(run.after)
    cards = []
    for key in sorted({*before, *after}):
        prompt = (after.get(key) or before[key])[0].prompt
        parts = [f'<p><span class="who">prompt {escape(key)}</span>{escape(prompt.text) or escape(key)}</p>']
        for author, answers in (("before (reference)", before.get(key, [])), (run.whose_after, after.get(key, []))):
            for answer in answers:
                text = escape(without_markup(answer.text))
                measured = "".join(
                    f'<span class="mark">{escape(words)}</span>' for words in run.measured_answers.get(answer.id, ())
                )
                parts.append(f'<p><span class="who">{escape(author)}</span><bdi>{text}</bdi>{measured}</p>')
        cards.append(f'<div class="answer">{"".join(parts)}</div>')
    if not cards:
        return ""
    first, more = "".join(cards[:SHOWN]), cards[SHOWN:]
    folded = f'<details><summary>{len(more)} more prompts</summary><div class="answers">{"".join(more)}</div></details>'
    return f'<p>{run.how_drawn}</p><div class="answers">{first}</div>{folded if more else ""}'


def deliveries(run: RunData) -> str:
    """Every hand-over of weights to an engine, with what was checked before anything was sampled."""
    if not run.deliveries:
        return ""
    note = (
        "<p>Before an engine samples from new weights it must name their version, the hash over the tensors that it "
        "holds must equal the trainer's, and its log-probabilities of fixed texts must agree with the trainer's. A "
        "check that fails stops the run.</p>"
    )
    return note + _deliveries(run, None)


def theory(run: RunData) -> str:
    """The multiplier; where the truth is known, the distance to the theorem's bound and its premises too."""
    comparison = "" if run.without_truth else f"{_rate(run)}<h3>Premises</h3>{_premises(run)}"
    return _multiplier(run) + comparison + figures_of_theory(run)


def rounds(run: RunData) -> str:
    """Speed, and one folded part per round; the newest first."""
    numbers = sorted({*run.metrics, *(entry.round for entry in run.phases)}, reverse=True)
    return figures_of_speed(run) + "".join(_round(run, number_) for number_ in numbers)


def result(run: RunData) -> str:
    """result.json, number by number."""
    rows = []
    for key, value in run.result.items():
        if key == "scorecard" or (value is None and run.without_truth):
            continue  # shown above, or unknown
        for name, item in _leaves(key, value):
            plain = isinstance(item, bool) or not isinstance(item, int | float)
            rows.append([f"<code>{escape(name)}</code>", escape(item) if plain else number(item, name)])
    values = table(["key", "value"], rows, kind="words")
    return f"<details><summary>All {len(rows)} values</summary>{values}</details>" if rows else ""


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values within objects and lists, each with its path."""
    if not isinstance(value, dict | list) or not value:
        yield key, value if value or value in (0, "") else "none"
        return
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(f"{key}.{name}", item)


def recipe(run: RunData) -> str:
    text = yaml.safe_dump(_without_secrets(dict(run.recipe)), sort_keys=False, allow_unicode=True)
    return f"<details><summary>Every setting of this run</summary><pre>{escape(text)}</pre></details>"


SECTIONS: tuple[Section, ...] = (
    ("charts", "The run in pictures", charts),
    ("answers", "Answers before and after", answers),
    ("certificates", "Is the limit kept?", certificates),
    ("limits", "Limits and their multipliers", limits),
    ("scorecard", "Is it better, and by whose word?", scorecard),
    ("scorers", "Can the reward and cost models be trusted?", scorers),
    ("people", "People in the loop", people),
    ("points", "Policies compared", endpoints),
    ("theory", "For researchers: the multiplier and the theorem", theory),
    ("labels", "What more labels would buy", labels),
    ("deliveries", "Did every engine sample from the trained weights?", deliveries),
    ("rounds", "Round by round", rounds),
    ("result", "result.json", result),
    ("recipe", "Recipe", recipe),
)
FOLDED = ("limits", "points", "theory", "labels", "deliveries", "rounds", "result", "recipe")
"""Sections that a reader opens: what is beyond the verdict and its evidence."""


# --- pieces --------------------------------------------------------------------------------------------------------


def _deliveries(run: RunData, round_: int | None) -> str:
    hashes = {entry.version.number: entry.version.sha256 for entry in run.versions}
    rows = []
    for entry in run.deliveries:
        if round_ is not None and entry.round != round_:
            continue
        delivery = entry.delivery
        ok = entry.verified and hashes.get(delivery.version, delivery.sha256) == delivery.sha256
        # candidates of the ledger are rounds -1, -2, ...
        round_cell = f"certificate {-entry.round}" if entry.round < 0 else number(entry.round, "round")
        rows.append(
            [
                round_cell,
                '<span class="good">verified</span>' if ok else '<span class="bad">not verified</span>',
                escape(delivery.engine),
                number(delivery.version, "policy_version"),
                f"<code>{escape(delivery.sha256[:12])}</code>",
                number(delivery.tensors, "tensors"),
                number(entry.canary_difference, "canary_difference", entry.round),
                number(delivery.seconds, "delivery_seconds", entry.round, seconds(delivery.seconds)),
            ]
        )
    headings = ["round", "verdict", "engine", "version", "sha256", "tensors", "difference of log-probabilities", "time"]
    return table(headings, rows) if rows else ""


def _multiplier(run: RunData) -> str:
    """λ and how far it is from that of the best possible policy; empty before the first step."""
    steps = run.steps
    if not steps:
        return ""
    second_half = [step.multiplier_before for step in steps[len(steps) // 2 :]]
    mean = sum(second_half) / len(second_half)
    best = run.multiplier_optimum
    comparison = "" if run.without_truth else "The multiplier of the best possible policy, λ*, is not known."
    if best is not None and best > 0:
        percent = 100.0 * abs(mean - best) / best
        comparison = (
            f"For the best possible policy it is λ* = {number(best, 'multiplier_optimum')}: the average is "
            f"{number(percent, 'multiplier_off', shown=f'{percent:.0f} %')} away."
        )
    elif best is not None:
        comparison = "The limit costs the best possible policy nothing: λ* is 0."
    last = number(steps[-1].multiplier_after, "dual/next", steps[-1].round)
    average = number(mean, "multiplier_mean")
    return (
        f"<p>The multiplier λ, the price of the limit, is {last} after the last round and {average} on average over the"
        f" second half of the rounds. {comparison}</p>"
    )


def _rate(run: RunData) -> str:
    rate = rate_so_far(run)
    if rate is None:
        return "<p>No dual step has been taken yet.</p>"
    rows = [
        [
            "violation by the estimates, 95 % interval",
            f"{number(rate.estimate, 'mean_estimate_gap')} ({ends(rate.estimate_ends)})",
            number(rate.violation_bound, "violation_bound"),
        ]
    ]
    if rate.violation is not None:
        rows.append(["violation, exact", number(rate.violation, "mean_g"), number(rate.violation_bound)])
    if rate.regret is not None:
        rows.append(
            ["regret f* − f, exact", number(rate.regret, "mean_regret"), number(rate.regret_bound, "regret_bound")]
        )
    if rate.violation_bound is None:
        note = "The theorem's bound needs ρ and the largest cost C, which this run does not state."
    else:
        note = (
            "The bound is what the steps of λ alone may cause after as many rounds; errors of fits and estimates come "
            "on top of it. It falls like 1/√K with the number of rounds K."
        )
        if not rate.own_rule:
            note += (
                " This run moves λ by another rule than the theorem's; the bound shown is that of the theorem's rule."
            )
    head = ["mean over the rounds so far", f"after {number(rate.rounds, 'steps')} rounds", "the theorem's bound"]
    return table(head, rows, kind="words") + f"<p>{note}</p>"


def _premises(run: RunData) -> str:
    color = {"met": "good", "not met": "bad", "not checkable": "open"}
    rows = [
        [escape(item.name), f'<span class="{color[item.state]}">{item.state}</span>', escape(item.why)]
        for item in assumptions(run)
    ]
    return table(["premise", "in this run", "because"], rows, kind="words")


def _round(run: RunData, round_: int) -> str:
    values = run.metrics.get(round_, {})
    phases = [entry for entry in run.phases if entry.round == round_]
    took = sum(entry.seconds for entry in phases)
    brief = [f"{name} {number(values[key], key, round_)}" for key, name in _BRIEF if key in values]
    title = f"Round {round_}" if round_ > 0 else f"Certificate candidate {-round_}" if round_ else "Before round 1"
    parts = [f"<summary><b>{title}</b> {' · '.join([*brief, seconds(took)])}</summary>"]
    if phases:
        cells = [[escape(e.phase), number(e.seconds, "phase_seconds", round_, seconds(e.seconds))] for e in phases]
        parts.append(f"<h3>Phases</h3>{table(['phase', 'time'], cells)}")
    parts += [_round_steps(run, round_), _round_versions(run, round_)]
    delivered = _deliveries(run, round_)
    parts.append(f"<h3>Deliveries</h3>{delivered}" if delivered else "")
    parts.append(_round_labels(run, round_))
    if values:
        cells = [[f"<code>{escape(key)}</code>", number(value, key, round_)] for key, value in sorted(values.items())]
        parts.append(f"<h3>Metrics</h3>{table(['name', 'value'], cells)}")
    return f'<details id="round-{round_}">{"".join(parts)}</details>'


_BRIEF = (
    ("dual/multiplier", "λ"),
    ("cost/estimate", "cost"),
    ("exact/gap_policy", "gap"),
    ("exact/off_support", "off-grammar mass"),
)


def _round_steps(run: RunData, round_: int) -> str:
    rows = []
    for limit in run.limits:
        for step in (entry for entry in run.steps_of(limit) if entry.round == round_):
            estimate, key = run.estimate(limit, step), f"{limit.prefix}said"
            rows.append(
                [
                    escape(step.constraint),
                    number(estimate.estimate, f"{key}/estimate", round_, limit.text(estimate.estimate)),
                    both_ends((estimate.low, estimate.high), limit.text, key, round_, estimate.no_interval),
                    f"{number(step.estimate.responses)} × {number(step.estimate.labels_each)}",
                    f"{number(step.multiplier_before, 'dual/multiplier', round_)} → "
                    f"{number(step.multiplier_after, 'dual/next', round_)}",
                    number(step.eta, "dual/eta", round_),
                ]
            )
    headings = ["limit on", "estimate", "95 % interval", "answers × labels", "λ", "step η"]
    return f"<h3>Step of the multiplier</h3>{table(headings, rows)}" if rows else ""


def _round_versions(run: RunData, round_: int) -> str:
    rows = [
        [
            escape(entry.version.name),
            number(entry.version.number, "policy_version"),
            f"<code>{escape(entry.version.sha256[:12])}</code>",
            escape(entry.stage),
            escape(", ".join(map(str, entry.workers)) or "–"),
        ]
        for entry in run.versions
        if entry.round == round_
    ]
    return f"<h3>Weights made</h3>{table(['name', 'version', 'sha256', 'stage', 'worker PIDs'], rows)}" if rows else ""


def _round_labels(run: RunData, round_: int) -> str:
    labels = run.labels.get(round_)
    if labels is None:
        return ""
    single = labels.safety + run.measured(round_)
    parts = [
        f"<h3>Labels</h3><p>{number(single, 'labels/single', round_)} of single answers; "
        f"{number(labels.pairs, 'labels/pairs', round_)} pairs.</p>"
    ]
    for answer in run.answers.get(round_, ()):
        parts.append(
            f'<div class="answer"><p><span class="who">{escape(answer.prompt)}</span><bdi>{escape(answer.text)}</bdi>'
            f'<span class="who">unsafe in {number(answer.unsafe, "unsafe", round_)} of '
            f"{number(answer.labels, 'labels_each', round_)} labels</span></p></div>"
        )
    return "".join(parts)


def _without_secrets(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe without the password that a database URL may hold."""
    url = recipe.get("journal")
    if isinstance(url, str) and "@" in url:
        scheme, _, address = url.partition("://")
        return recipe | {"journal": f"{scheme}://***@{address.rpartition('@')[2]}"}
    return recipe
