"""The report's section on certificates: what was shown, the bound as draws came in, what a tighter limit would take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pddpo_ray.certificates.document import statements
from pddpo_ray.certificates.groups import GroupFinding, by_group, by_prompt
from pddpo_ray.certificates.ledger import Entry, TestedLimit, finding
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.report.charts import Level, Line, color_of, line_chart
from pddpo_ray.report.run_data import RunData, ShownLimit
from pddpo_ray.report.text import escape, number, prose, short, table
from pddpo_ray.theory.certificates.power import draws_needed

POINTS = 40
"""Looks that the picture of a bound shows."""
WORST = 12
"""Prompts that are shown, those with the highest cost."""
MOST = 10_000
"""Draws beyond which a tighter limit is not priced."""
TIGHTER = (0.75, 0.5, 0.25)
"""Parts of a limit that are priced."""
STATE = {"certified": "good", "rejected": "bad", "undecided": "open"}


def newest(run: RunData) -> Entry | None:
    """The run's candidate: the last certified one, else the last."""
    certified = [entry for entry in run.ledger if entry.state == "certified"]
    return next(reversed(certified or list(run.ledger)), None)


def certificates(run: RunData) -> str:
    """Statement, the dual's margin, bound by draws, prompts, tighter limits and the ledger; as far as there are any."""
    entry, aims = newest(run), _aims(run)
    if entry is None:
        return aims
    above = run.outcome.certificate and entry.candidate.policy == run.outcome.policy  # in the box of what is released
    lines = [*([] if above else statements(entry)), *_entered_for(entry)]
    bullets = "".join(f"<li>{prose(line)}</li>" for line in lines)
    limits = [limit for limit in entry.candidate.limits if entry.numbers[limit.name]]
    pictures = "".join(_picture(entry, limit) for limit in limits)
    tables = "".join(
        _tighter(entry, limit) + _sets(run, entry, limit) + _prompts(run, entry, limit) for limit in limits
    )
    bullets = f"<ul>{bullets}</ul>" if bullets else ""
    return f'{bullets}{aims}<div class="charts">{pictures}</div>{tables}{_ledger(run.ledger)}'


def _entered_for(entry: Entry) -> list[str]:
    """A note on a candidate that entered with other bounds than the recipe's; empty for any other."""
    limits = [limit for limit in entry.candidate.limits if limit.shaped_for is not None]
    if not limits:
        return []
    bounds = ", ".join(f"{limit.name} {limit.entered.stated}" for limit in limits)
    return [
        f"It entered the ledger for {bounds}; the statements are about the recipe's limits. Its bounds hold for every"
        " limit, and `pddpo certify --limit` asks about another without spending confidence."
    ]


def _aims(run: RunData) -> str:
    """How far below each limit its multiplier aimed; empty without a margin."""
    start = "dual/margin_"
    margins = {
        name.removeprefix(start): value
        for _, metrics in sorted(run.metrics.items())  # the newest round's, where a mean's margin was measured
        for name, value in metrics.items()
        if name.startswith(start)
    }
    limits = {limit.name: limit.limit for limit in run.limits}
    aims = ", ".join(
        f"{escape(name)} at {number(value, f'{start}{name}', shown=_aim(limits[name], value))} in place of"
        f" {escape(limits[name].bound)}"
        for name, value in margins.items()
        if name in limits
    )
    return f"<p>Training aimed inside the limits, to leave room for the test: {aims}.</p>" if aims else ""


def _aim(limit: Limit, margin: float) -> str:
    """The bound at which training aimed, in the limit's unit."""
    return limit.quantity.text(limit.cost(limit.cost_limit - margin))


def _picture(entry: Entry, limit: TestedLimit) -> str:
    """Upper bound of the limit's measure after each number of draws; it holds at all of them."""
    numbers = entry.numbers[limit.name]
    rounds = entry.candidate.rounds
    if rounds is None:
        looks = np.unique(np.linspace(1, len(numbers), min(POINTS, len(numbers))).astype(int))
        findings = [finding(limit, numbers[:look]) for look in looks]
    else:
        looks = len(numbers) // rounds * np.arange(1, rounds + 1)
        findings = [finding(limit, numbers[: int(look)], index + 1) for index, look in enumerate(looks)]
    shown = ShownLimit(limit.stated, "")
    upper, lower = (
        [(float(look), shown.axis(limit.stated.cost(end))) for look, end in zip(looks, ends, strict=True)]
        for ends in ([result.upper for result in findings], [result.lower for result in findings])
    )
    sides = ("the lowest it can be", "the highest it can be")
    if limit.at_least:
        sides = (sides[1], sides[0])
    return line_chart(
        f"{limit.name}: what is shown by number of draws",
        "Both ends hold at every look, so it may be stopped at any of them."
        if rounds is None
        else "At the end of each round, about the mean over the rounds until then; both ends hold at every one.",
        [Line(sides[1], upper, color_of(0)), Line(sides[0], lower, color_of(1), dashed=True)],
        levels=[Level("limit", shown.axis(limit.stated.bound.number), color_of(2))],
        x_label="draws",
        y_label=shown.unit or "mean",
    )


def _tighter(entry: Entry, limit: TestedLimit) -> str:
    """Draws for a tighter limit on a rate, if the share that was seen is the true one."""
    values = [value for value in limit.draws(entry.numbers[limit.name]) if not np.isnan(value)]
    if limit.kind != "rate" or limit.people is not None or not values:
        return ""
    mean, bound = float(np.mean(values)), limit.to_unit(limit.limit)
    rows = []
    for part in TIGHTER:
        target = part * bound
        needed = draws_needed(target, mean, limit.level, most=MOST) if mean < target else None
        text = number(needed) if needed is not None else f"over {MOST:,}" if mean < 0.87 * target else "none suffice"
        rows.append([_amount_text(limit, limit.from_unit(target)), text])
    share = _amount_text(limit, limit.from_unit(mean))
    note = (
        f"<p>Draws that would certify a tighter limit on {escape(limit.name)}, if the share seen, {share}, is true:</p>"
    )
    return note + table(["limit", "draws, with probability 80 %"], rows)


def _sets(run: RunData, entry: Entry, limit: TestedLimit) -> str:
    """Every prompt set and group with its own bounds; empty where there is one or none."""
    if limit.over is not None:
        return ""
    sets_of = {draw: run.sets_of_prompt.get(prompt, ()) for draw, prompt in run.prompt_of_draw.items()}
    groups = sorted(by_group(entry, limit, sets_of), key=lambda group: group.name)
    if len(groups) < 2:
        return ""
    rows = [[escape(group.name), number(group.draws), *_mean_and_ends(limit, group)] for group in groups]
    note = (
        f"<p>{escape(limit.name)} by prompt set or group; each interval holds by itself, with"
        f" {100 * (1 - limit.delta):.3g}&nbsp;% confidence.</p>"
    )
    return note + table(["prompts", "draws", "mean", "at every look"], rows)


def _mean_and_ends(limit: TestedLimit, group: GroupFinding) -> list[str]:
    low, high = limit.between(group.lower, group.upper)
    ends = escape(f"{low} to {high}")
    broken = group.lower > limit.limit
    return [_amount_text(limit, group.mean), f'<span class="bad">{ends}, above the limit</span>' if broken else ends]


def _prompts(run: RunData, entry: Entry, limit: TestedLimit) -> str:
    """The prompts with the highest cost, each with its own bounds, which the average over prompts does not show."""
    groups = sorted(by_prompt(entry, limit, run.prompt_of_draw), key=lambda group: (-group.mean, -group.draws))
    if len(groups) < 2:
        return ""
    rows = [
        [
            escape(run.prompt_texts.get(group.name, group.name)[:120]),
            number(group.draws),
            *_mean_and_ends(limit, group),
        ]
        for group in groups[:WORST]
    ]
    scope = "All" if len(rows) == len(groups) else f"The worst {len(rows)} of"
    summary = f"{scope} {len(groups)} prompts under {escape(limit.name)}, the worst first"
    broken = sum(group.lower > limit.limit for group in groups)
    above = f'; <span class="bad">{broken} by itself above the limit</span>' if broken else ""
    note = f"<p>Each interval holds by itself, with {100 * (1 - limit.delta):.3g}&nbsp;% confidence.</p>"
    rows_shown = table(["prompt", "draws", "mean", "at every look"], rows)
    return f"<details><summary>{summary}{above}</summary>{note}{rows_shown}</details>"


def _ledger(ledger: Sequence[Entry]) -> str:
    rows = [
        [
            number(entry.candidate.number),
            escape(entry.candidate.policy),
            escape("; ".join(f"{limit.name} {limit.entered.stated}" for limit in entry.candidate.limits)),
            escape("; ".join(_bound_text(entry, limit) for limit in entry.candidate.limits)),
            ", ".join(short(limit.level) for limit in entry.candidate.limits),
            number(entry.count),
            f'<span class="{STATE[entry.state]}">{entry.state}</span>',
        ]
        for entry in ledger
    ]
    note = "<p>The policies that this run has tested; together they share one error budget.</p>"
    head = [
        "candidate",
        "policy",
        "entered for",
        "shown, for every limit",
        "level",
        "draws",
        "under the recipe's limits",
    ]
    return note + table(head, rows)


def _bound_text(entry: Entry, limit: TestedLimit) -> str:
    """`cost at most 4.3 %`: what the draws show, whichever limit is asked about."""
    result = finding(limit.entered, entry.numbers[limit.name], entry.candidate.rounds)
    return f"{limit.name} at {'least' if limit.at_least else 'most'} {limit.amount(result.upper)}"


def _amount_text(limit: TestedLimit, cost: float) -> str:
    """A cost as the quantity that the limit is stated in."""
    return escape(str(limit.amount(cost)))
