"""The report's section on the scorecard: every figure of the reference and of the rounds, and the alarm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pddpo_ray.report.run_data import RunData
from pddpo_ray.report.text import escape, number, table
from pddpo_ray.scorecard.cards import alarm_of, divergence
from pddpo_ray.scorecard.words import FIGURES, REFUSAL_ACCURACY

SHOWN = 6
"""Rounds shown beside the reference: the first and the last ones."""


def scorecard(run: RunData) -> str:
    """Empty for a run without a scorecard."""
    if 0 not in run.scorecard:
        return ""
    return _warnings(run) + _introduction(run) + _figures(run) + _alarm(run) + _notes(run)


def _warnings(run: RunData) -> str:
    """Warnings of the newest round."""
    newest = run.scorecard[max(run.scorecard)]
    return "".join(f'<p class="bad">{escape(note)}</p>' for note in newest["notes"])


def _introduction(run: RunData) -> str:
    first = run.scorecard[0]
    each = len(next(iter(first["scores"].values()))[0]) if first["scores"] else None
    answers = "" if each is None else f", {number(each, 'scorecard/answers')} answers to each"
    whose = "that the run kept from itself" if first["held_out"] else "of the run's own, as it keeps none from itself"
    lines = [
        f"<p>{number(len(first['prompts']), 'scorecard/prompts')} fixed prompts {whose}{answers}. The reference and"
        " every round's policy answer them with the same decoding and the same seeds, so a policy that has not moved"
        " has the reference's very answers. In brackets 95 % intervals over prompts, answers to one prompt counted"
        " together; where no bounds are known, ± the standard error. Gains are in standard deviations of the"
        " reference's answers.</p>"
    ]
    for kind, trials in run.held_out_trials.items():
        bad = "" if trials.better_than_chance else ' <span class="bad">That is not better than chance.</span>'
        lines.append(f"<p>Held-out {escape(kind)} scorer: {escape(trials)}.{bad}</p>")
    if not run.held_out_trials:
        lines.append(
            "<p>No held-out scorer judges these answers: name some under <code>scorecard.scorers</code>, or set"
            " <code>scorecard.train</code>.</p>"
        )
    return "".join(lines)


def _figures(run: RunData) -> str:
    """A row for each figure with a value, a column for the reference and each shown round."""
    rounds = [number_ for number_ in sorted(run.scorecard) if number_]
    shown = [0, *(rounds if len(rounds) <= SHOWN else [rounds[0], *rounds[1 - SHOWN :]])]
    rows = []
    for name, figure in FIGURES.items():
        cells = [run.scorecard[round_]["figures"].get(name) for round_ in shown]
        if not any(cells):
            continue
        trials = run.held_out_trials.get(figure.scorer) if figure.scorer else None
        right = "" if trials is None or not trials.count else _right(trials.right / trials.count, figure.scorer or "")
        rows.append(
            [f"{escape(figure.title)}{right}", *(_cell(name, cell, at) for cell, at in zip(cells, shown, strict=True))]
        )
    return table(["", *("reference" if not at else f"round {at}" for at in shown)], rows, kind="words")


def _right(share: float, kind: str) -> str:
    text = number(share, f"scorecard/{kind}_held_out_right", shown=f"{100 * share:.3g} %")
    return f' <span class="soft">(scorer right in {text})</span>'


def _cell(name: str, figure: Mapping[str, Any] | None, round_: int) -> str:
    return "" if figure is None else number(figure["value"], f"scorecard/{name}", round_, FIGURES[name].whole(figure))


def _alarm(run: RunData) -> str:
    cards = [(at, card) for at, card in sorted(run.scorecard.items()) if card["alarm"]]
    if not cards:
        return ""
    first_alarm = next((alarm for _, card in cards if (alarm := alarm_of(card)) is not None), None)
    level = (run.recipe.get("scorecard") or {}).get("alarm", 0.05)
    note = (
        "<p>It rings when the run's own reward rises on more prompts than chance explains while the held-out one falls,"
        f" against the reference or any round before; over all rounds it is false with probability at most {level:g}."
        "</p>"
    )
    closest = min(
        (divergence(row) for _, card in cards for row in card["alarm"]), key=lambda row: row.p_value / row.level
    )
    verdict = (
        f'<p class="bad">It rang in round {number(first_alarm.round, "scorecard/rang")}: {escape(first_alarm)}.</p>'
        if first_alarm is not None
        else f'<p class="good">It is silent. Closest to it, in round {closest.round}: {escape(closest)}.</p>'
    )
    return f"<h3>Does the reward model get what it asks for and not what it stands for?</h3>{note}{verdict}"


def _notes(run: RunData) -> str:
    refuses = f"<p>{escape(REFUSAL_ACCURACY)}</p>" if "refusals" in run.scorecard[0]["figures"] else ""
    return (
        f"{refuses}<p>Distinct words and pairs of words are shares of all those in the answers together: longer answers"
        " repeat more of them.</p>"
    )
