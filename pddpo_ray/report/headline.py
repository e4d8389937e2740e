"""The first screen of the report: four cards that answer the four questions a reader comes with."""

from __future__ import annotations

from pddpo_ray.report.readable import seconds, short
from pddpo_ray.report.run_data import Point, RunData
from pddpo_ray.report.text import escape, number
from pddpo_ray.report.theory import half_width
from pddpo_ray.theory.cost_estimate import interval


def header(run: RunData) -> str:
    """Name, state in words, and the cards."""
    world = (run.recipe.get("world") or {}).get("kind")
    place = "" if world is None else " on real text" if world == "none" else f" on the {world} world"
    what = f"{run.recipe.get('algorithm', 'run')}{place}"
    return (
        f'<header><h1>{escape(run.name)}</h1><p class="soft">{escape(what)} · seed '
        f"{escape(run.recipe.get('seed', '–'))}</p><p>{_state(run)}</p>"
        f'<p class="lede">{_in_words(run)}</p></header>'
        f'<section class="cards">{_gap(run)}{_limit(run)}{_price(run)}{_effort(run)}</section>'
    )


def _state(run: RunData) -> str:
    rounds = f"{number(run.finished, 'finished')} of {number(run.total, 'rounds')} rounds"
    if run.complete:
        return f'<span class="state good">finished</span> {rounds}.'
    if run.finished >= run.total:
        return f'<span class="state open">unfinished</span> {rounds} are done; the final evaluation is still to come.'
    done = [entry.phase for entry in run.phases if entry.round == run.finished + 1]
    where = f"; in round {run.finished + 1} these phases are done: {escape(', '.join(done))}" if done else ""
    return (
        f'<span class="state open">unfinished</span> {rounds} are done{where}. '
        "The run may be going on, waiting for labels or stopped; <code>pddpo train … --resume</code> goes on with it."
    )


def _in_words(run: RunData) -> str:
    """The outcome in a sentence or two; empty before there is one."""
    said = []
    last, offline, covered = run.gap("last"), run.gap("offline"), run.gap("covered_only")
    other, leaves = (offline, "offline PD-DPO leaves") if offline else (covered, "every offline method must leave")
    if last is not None and other:
        share = 100.0 * last / other
        said.append(
            f"What separates the last policy from the best possible one is "
            f"{number(share, 'gap_share', shown=f'{share:.0f} %')} of what {leaves} open"
        )
    if run.steps:
        estimate, limit = run.steps[-1].estimate, run.threshold
        gap = estimate.value - limit
        where = "below" if gap <= 0 else "above"
        said.append(
            f"by its labels its cost is {number(abs(gap), 'estimate_gap')} {where} the limit, give or take "
            f"{number(half_width(run, 1.0), 'half_width')}"
        )
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _card(title: str, big: str, *lines: str) -> str:
    body = "".join(f"<p>{line}</p>" for line in lines if line)
    return f'<div class="card"><h3>{title}</h3><p class="big">{big}</p>{body}</div>'


def _gap(run: RunData) -> str:
    title = "How far from the best possible policy?"
    gap = _newest(run, "last", "exact/gap_policy")
    if gap is None:
        return _card(
            title, '<span class="none">not known</span>', "Only a world with known scores has a known best policy."
        )
    beside = []
    for name, words in (("offline", "offline PD-DPO ends at"), ("covered_only", "no offline method can get below")):
        other = run.gap(name)
        if other is not None:
            beside.append(f"{words} {number(other, f'gap_{name}')}")
    mixed = _newest(run, "mixture", "exact/gap_mixture")
    return _card(
        title,
        number(gap, "gap_last"),
        "gap of the last policy; 0 is the optimum, violation counts against it.",
        f"For comparison: {'; '.join(beside)}." if beside else "",
        f"The mixture of all rounds: {number(mixed, 'gap_mixture')}." if mixed is not None else "",
    )


def _limit(run: RunData) -> str:
    title = "Is the limit kept?"
    steps = run.steps
    if not steps:
        return _card(title, '<span class="none">no estimate yet</span>', f"The limit is {short(run.threshold)}.")
    estimate, limit = steps[-1].estimate, run.threshold
    low, high = interval(estimate)
    verdict = (
        '<span class="good">yes</span>'
        if high <= limit
        else '<span class="bad">no</span>'
        if low > limit
        else '<span class="open">too close to call</span>'
    )
    exact = _exact_g(run)
    return _card(
        title,
        verdict,
        f"Cost of the last policy: {number(estimate.value, 'cost/estimate', steps[-1].round)}, 95 % interval "
        f"{number(low, 'cost/low', steps[-1].round)} to {number(high, 'cost/high', steps[-1].round)}; "
        f"the limit is {number(limit, 'threshold')}.",
        "" if exact is None else f"Exactly it is {_side(exact)} the limit by {number(abs(exact), 'violation')}.",
    )


def _price(run: RunData) -> str:
    title = "Was the price of the limit found?"
    steps = run.steps
    if not steps:
        return _card(title, '<span class="none">no step yet</span>')
    second_half = [step.multiplier_before for step in steps[len(steps) // 2 :]]
    mean = sum(second_half) / len(second_half)
    best = run.multiplier_optimum
    lines = [
        f"λ for the next round; {number(mean, 'multiplier_mean')} on average over the second half.",
    ]
    if best is None:
        lines.append("The right price λ* is not known.")
    elif best > 0:
        away = 100.0 * abs(mean - best) / best
        lines.append(
            f"The right price λ* is {number(best, 'multiplier_optimum')}: the average is "
            f"{number(away, 'multiplier_off', shown=f'{away:.0f} %')} away."
        )
    else:
        lines.append("The limit does not bind: λ* is 0.")
    return _card(title, f"λ = {number(steps[-1].multiplier_after, 'dual/next', steps[-1].round)}", *lines)


def _effort(run: RunData) -> str:
    labels = sum(item.safety for item in run.labels.values())
    pairs = sum(item.pairs for item in run.labels.values())
    spent = run.result.get("seconds")
    spent = sum(entry.seconds for entry in run.phases) if not isinstance(spent, int | float) else float(spent)
    verified = sum(entry.verified for entry in run.deliveries)
    speed = run.result.get("tokens_per_second") or run.last("rollout/tokens_per_second")
    return _card(
        "What did it take?",
        number(spent, "seconds", shown=seconds(spent)),
        f"{number(labels, 'safety_labels')} safety labels and {number(pairs, 'labelled_pairs')} labelled pairs.",
        f"{number(speed, 'tokens_per_second')} tokens a second." if speed else "",
        f"{number(verified, 'weights_verified')} of {number(len(run.deliveries), 'deliveries')} deliveries verified.",
    )


def _newest(run: RunData, point: str, metric: str) -> float | None:
    """A point's gap from the result, or from the newest round of an unfinished run."""
    gap = run.gap(point)
    return run.last(metric) if gap is None else gap


def _exact_g(run: RunData) -> float | None:
    last: Point | None = run.point("last")
    return last.g if last is not None else run.last("exact/g_policy")


def _side(g: float) -> str:
    return "above" if g > 0 else "below"
