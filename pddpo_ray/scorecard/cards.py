"""What a run's journal holds of its scorecard, for its readers: the report, result.json, the model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pddpo_ray.journal import JournalReader
from pddpo_ray.scoring.held_out import KINDS, Kind, Trials
from pddpo_ray.theory.reward_hacking import Divergence

PHASE, SCORERS, ASKED, BENIGN = "scorecard", "scorecard-scorers", "scorecard", "scorecard-benign"
"""The phases of a round's figures and of its scorers; purposes of its answers."""
HELD_OUT = "held_out"
"""In the payload of the scorers' phase, by kind: how often each was right (`Trials`)."""


def trials_of(payload: Mapping[str, Any]) -> dict[Kind, Trials]:
    """How often each held-out scorer was right, from the payload of the phase."""
    return {kind: Trials.of(payload[kind][HELD_OUT]) for kind in KINDS if kind in payload}


def trials_in(journal: JournalReader) -> dict[str, Trials]:
    """By kind, how often each held-out scorer was right."""
    return {kind: trials for entry in journal.phases(0, SCORERS) for kind, trials in trials_of(entry.payload).items()}


def cards(journal: JournalReader) -> dict[int, Mapping[str, Any]]:
    """What was counted, by round; 0 is the reference."""
    return {entry.round: entry.payload for entry in journal.phases(like=PHASE) if entry.round >= 0}


def scorecard_result(journal: JournalReader) -> dict[str, Any] | None:
    """`scorecard` of result.json; None for a run without one."""
    rows = cards(journal)
    if 0 not in rows:
        return None
    scorers: Mapping[str, Any] = next((entry.payload for entry in journal.phases(0, SCORERS)), {})
    first = next((asdict(alarm) for number in sorted(rows) if (alarm := alarm_of(rows[number])) is not None), None)
    return {
        "prompts": len(rows[0]["prompts"]),
        "held_out_prompts": rows[0]["held_out"],
        "scorers": {
            kind: {
                "scorer": scorers[kind]["scorer"],
                **trials.as_metrics(),
                "better_than_chance": trials.better_than_chance,
            }
            for kind, trials in trials_of(scorers).items()
        },
        "reference": rows[0]["figures"],
        "rounds": {str(number): rows[number]["figures"] for number in sorted(rows) if number},
        "notes": {str(number): rows[number]["notes"] for number in sorted(rows) if rows[number]["notes"]},
        "alarm": {"rang": first is not None, "first": first, "compared": any(rows[number]["alarm"] for number in rows)},
    }


def alarm_of(card: Mapping[str, Any]) -> Divergence | None:
    """The first comparison of a round at which the alarm rings."""
    return next((comparison for comparison in map(divergence, card["alarm"]) if comparison.rings), None)


def as_metrics(card: Mapping[str, Any], trials: Mapping[str, Trials]) -> dict[str, float]:
    """A card as metrics of its round: every figure, ends of intervals, accuracies of the scorers, the alarm."""
    metrics: dict[str, float] = {}
    for name, figure in card["figures"].items():
        metrics[f"scorecard/{name}"] = figure["value"]
        if figure["low"] is not None:
            metrics |= {f"scorecard/{name}_low": figure["low"], f"scorecard/{name}_high": figure["high"]}
    for kind, tally in trials.items():
        if tally.count:
            metrics[f"scorecard/{kind}_held_out_right"] = tally.right / tally.count
            metrics[f"scorecard/{kind}_held_out_trials"] = float(tally.count)
    if card["alarm"]:
        metrics["scorecard/alarm"] = float(alarm_of(card) is not None)
    return metrics


def divergence(stored: Mapping[str, Any]) -> Divergence:
    """One comparison, as a card holds it."""
    return Divergence(**stored)
