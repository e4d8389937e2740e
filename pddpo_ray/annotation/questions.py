"""What people are asked and what they may answer. Pure: no database, no web.

A *safety* question shows one answer: is it safe or unsafe? A *pair* question shows two answers left and right: which
is more helpful, which is more harmful, is each safe. One pair question makes one complete row of the PKU-SafeRLHF
kind. People see left and right; what is stored speaks of first and second, so the random screen order never leaks
into the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pddpo_ray.annotation.queue_rules import Problem, QueueError
from pddpo_ray.records import Pair, Response

Kind = Literal["safety", "pair"]
Reply = Literal["label", "abstain", "skip", "flag"]
Given = dict[str, str]

SAFETY = ("safe", "unsafe")
SIDES = {False: {"left": "first", "right": "second"}, True: {"left": "second", "right": "first"}}
TIE = "tie"
REASONS = ("too_harmful", "cannot_judge", "language", "broken", "other")
PAIR_FIELDS = ("more_helpful", "more_harmful", "left_safety", "right_safety")
STORED_PAIR = ("more_helpful", "more_harmful", "first_safety", "second_safety")


@dataclass(frozen=True)
class Question:
    """One item to be labelled. `item` is the response's or the pair's id in the run.

    `provenance` says who wrote the answers (`policy_version`, for a pair also `second_policy_version`) and is never
    shown to annotators. `gold` is the known answer of a control question in stored form, e.g. {"safety": "unsafe"}.
    `risk` in [0, 1] is compared with what a person agreed to see; `priority` orders questions of one round.
    """

    kind: Kind
    item: str
    prompt: str
    first: str
    second: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    risk: float = 0.0
    priority: float = 0.0
    gold: Given | None = None

    def digest(self) -> str:
        """Hash of what is shown and where it comes from."""
        content = [self.kind, self.item, self.prompt, self.first, self.second, dict(self.provenance), self.gold]
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def safety_question(response: Response, *, risk: float = 0.0) -> Question:
    """Is this answer safe?"""
    provenance = {"policy_version": response.policy_version}
    return Question("safety", response.id, response.prompt.text, response.text, None, provenance, risk)


def pair_question(pair: Pair, *, priority: float = 0.0) -> Question:
    """Which of two answers is more helpful, which is more harmful?"""
    provenance = {
        "policy_version": pair.first.policy_version,
        "second_policy_version": pair.second.policy_version,
    }
    return Question("pair", pair.id, pair.prompt.text, pair.first.text, pair.second.text, provenance, priority=priority)


def round_digest(questions: Sequence[Question]) -> str:
    """Hash of a whole batch in order; the same batch opened twice is one batch."""
    return hashlib.sha256("\n".join(question.digest() for question in questions).encode()).hexdigest()


def stored_form(kind: str, given: Mapping[str, Any], swap: bool) -> Given:
    """An answer as it came from the screen (left, right) in terms of first and second.

    `swap`: the second answer was shown on the left. Raises QueueError (malformed) naming the field that is wrong.
    """
    if kind == "safety":
        _demand_fields(given, ("safety",))
        return {"safety": _one_of("safety", given["safety"], SAFETY)}
    _demand_fields(given, PAIR_FIELDS)
    stored = {
        name: SIDES[swap].get(_one_of(name, given[name], ("left", "right", TIE)), TIE)
        for name in ("more_helpful", "more_harmful")
    }
    for side, order in SIDES[swap].items():
        stored[f"{order}_safety"] = _one_of(f"{side}_safety", given[f"{side}_safety"], SAFETY)
    return stored


def screen_form(kind: str, stored: Mapping[str, str], swap: bool) -> Given:
    """The inverse of `stored_form`: what the person saw and pressed."""
    if kind == "safety":
        return dict(stored)
    back = {order: side for side, order in SIDES[swap].items()}
    shown = {name: back.get(stored[name], TIE) for name in ("more_helpful", "more_harmful")}
    return shown | {f"{side}_safety": stored[f"{order}_safety"] for side, order in SIDES[swap].items()}


def _demand_fields(given: Mapping[str, Any], names: Sequence[str]) -> None:
    if set(given) != set(names):
        raise QueueError(
            Problem.MALFORMED, f"this question is answered with {', '.join(names)}; got {', '.join(given) or 'nothing'}"
        )


def _one_of(name: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise QueueError(Problem.MALFORMED, f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)
