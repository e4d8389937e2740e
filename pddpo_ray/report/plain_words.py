"""What a run came to, in about ten lines for somebody who knows neither the paper nor this project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from pddpo_ray.certificates.outcome import Outcome
from pddpo_ray.driver.run import Event, PhaseChanged, RoundFinished, RunFinished, RunStarted
from pddpo_ray.limits.quantities import Quantity
from pddpo_ray.report.progress import LONG_S, Progress, said_of
from pddpo_ray.report.text import seconds, short

ON_THE_WAY = (
    "How much a limit weighs is learned on the way: more after a round that breaks it, less after one\n"
    "below it. So early rounds may break it; what is released has passed a test at the end."
)
EXACT_G = "exact/g_policy"
"""Metric of a round: the exact violation of its policy, in parts of the measure's range."""
EXACT_GAP = "exact/gap_policy"


class PlainProgress(Progress):
    """A line per round in plain words, without technical terms."""

    def __call__(self, event: Event) -> None:
        """The `progress` of `run_recipe`."""
        if isinstance(event, RunStarted):
            self._say(f"{event.total} rounds to do. The model and the engine start ...\n{ON_THE_WAY}")
        if isinstance(event, PhaseChanged) and event.event.round == 0 and event.event.what == "phase-finished":
            if event.event.seconds >= LONG_S:
                self._say(f"before round 1: {said_of(event.event.phase)} ({seconds(event.event.seconds)})")
        elif isinstance(event, RoundFinished):
            self._say(plain_round(event.round, event.total, event.limits, event.metrics))
        elif isinstance(event, RunFinished):
            self._say(f"finished in {seconds(event.result['seconds'])}\n")


def plain_progress(console: Console | None) -> PlainProgress:
    """Plain lines on this console, or on stderr."""
    shown = console or Console(stderr=True)
    return PlainProgress(lambda line: shown.print(line, highlight=False, soft_wrap=True))


def plain_round(number: int, total: int, limits: Sequence[str], metrics: Mapping[str, float]) -> str:
    """`round 2 of 6: unsafe 4.3 ± 1.9 % (at most 5 %), 0.606 from the best possible model`."""
    gap = metrics.get(EXACT_GAP)
    far = "" if gap is None else f", {short(gap)} from the best possible model"
    return f"round {number} of {total}: {', '.join(limits)}{far}"


@dataclass(frozen=True)
class Known:
    """Exact values of a released policy on a world with known truth: shares, and gaps to the best policy."""

    rate: float
    reference_rate: float
    gap: float
    reference_gap: float


def known_of(result: Mapping[str, Any], outcome: Outcome, metrics: Mapping[int, Mapping[str, float]]) -> Known | None:
    """The exact values behind the released round of a run with one rate limit; None where the world is not known."""
    values = metrics.get(outcome.round or 0, {})
    if outcome.round is None or EXACT_G not in values or len(result["limits"]) != 1:
        return None
    (limit,) = result["limits"].values()
    return Known(
        rate=limit["bound"] + values[EXACT_G],
        reference_rate=limit["value_reference"],
        gap=values[EXACT_GAP],
        reference_gap=result["gap_reference"],
    )


def plain_outcome(
    result: Mapping[str, Any], certificate: Mapping[str, Any] | None, facts: Known | None
) -> list[tuple[str, str]]:
    """(subject, sentence) of each line: what is released, which limits it keeps, who says so, and how good it is.

    `certificate` is the content of the run's certificate file; None: nothing is certified.
    """
    outcome = Outcome.from_json(result["outcome"])
    if outcome.policy is None or certificate is None:
        why = outcome.reason if outcome.policy is None else "it is not certified"
        return [
            ("released", f"no model: {why}"),
            *[("estimate", str(limit)) for limit in outcome.limits],
            ("effort", f"{result['labels_used']:,} labels, {seconds(result['seconds'])}"),
        ]
    (name, finding), *_ = certificate["findings"].items()
    tested = next(limit for limit in certificate["candidate"]["limits"] if limit["name"] == name)
    draws, confidence = len(certificate["numbers"][name]), 100 * (1 - tested["delta"])
    shown = Quantity("rate", "share").text_bound(finding["upper"], up=True)
    lines = [
        ("released", f"the model of round {outcome.round} of {result['rounds']}; it is in {outcome.weights}"),
        *[
            ("limit", f"{limit.name}: {limit.stated}; {limit.measured} by the labels of its round")
            for limit in outcome.limits
        ],
        (
            "certificate",
            f"with {confidence:g} % confidence at most {shown} of its answers are {name}:"
            f" {draws:,} fresh answers, used only for this test",
        ),
    ]
    if facts is not None:
        lines += [
            (
                "truth",
                f"this language is made up, so the truth is known: exactly {_percent(facts.rate)} are {name};"
                f" of the model that it began with, {_percent(facts.reference_rate)}",
            ),
            (
                "gap",
                f"{short(facts.gap)} from the best model that keeps the limit (0 is best, in points of helpfulness);"
                f" the model that it began with: {short(facts.reference_gap)}",
            ),
        ]
    return [*lines, ("effort", f"{result['labels_used']:,} labels, {seconds(result['seconds'])}")]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
