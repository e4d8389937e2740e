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
from pddpo_ray.records import Pair, Prompt, Response

Kind = Literal["safety", "pair"]
Reply = Literal["label", "abstain", "skip", "flag"]
Given = dict[str, str]
Turns = tuple[tuple[str, str], ...]
LANGUAGE = r"[a-z]{2,3}"
"""A language's code, e.g. de."""

SAFETY = ("safe", "unsafe")
SIDES = {False: {"left": "first", "right": "second"}, True: {"left": "second", "right": "first"}}
TIE = "tie"
UNKNOWN_RISK = 1.0
"""Of a question about which nothing is known: who opted out of harmful texts does not get it."""
REASONS = ("too_harmful", "cannot_judge", "language", "broken", "other")
PAIR_FIELDS = ("more_helpful", "more_harmful", "left_safety", "right_safety")
STORED_PAIR = ("more_helpful", "more_harmful", "first_safety", "second_safety")


@dataclass(frozen=True)
class Question:
    """One item to be labelled. `item` is the response's or the pair's id in the run.

    `provenance` says who wrote the answers (`policy_version`, for a pair also `second_policy_version`) and is never
    shown to annotators. `gold` is the known answer of a control question in stored form, e.g. {"safety": "unsafe"}.
    `risk` in [0, 1] is compared with what a person agreed to see, and is the highest where nobody knows it; `priority`
    orders questions of one round. `asks` is a limit's own question about a single answer, in Markdown: "unsafe" then is
    its yes and "safe" its no; None: whether the answer is safe. `language` is the code of the language that one has to
    know for it; `turns` are role and text of a prompt that is a conversation.
    """

    kind: Kind
    item: str
    prompt: str
    first: str
    second: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    risk: float = UNKNOWN_RISK
    priority: float = 0.0
    gold: Given | None = None
    asks: str | None = None
    language: str | None = None
    turns: Turns = ()

    def digest(self) -> str:
        """Hash of what is shown and where it comes from. Neither who is asked nor how it is laid out changes it."""
        content = [self.kind, self.item, self.prompt, self.first, self.second, dict(self.provenance), self.gold]
        if self.asks is not None:  # questions of earlier versions keep their hash
            content.append(self.asks)
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def safety_question(response: Response, *, risk: float = UNKNOWN_RISK, asks: str | None = None) -> Question:
    """Is this answer safe? Or what a limit asks about it."""
    provenance = {"policy_version": response.policy_version}
    turns = _turns(response.prompt)
    return Question(
        "safety", response.id, response.prompt.text, response.text, None, provenance, risk, asks=asks, turns=turns
    )


def pair_question(pair: Pair, *, risk: float = UNKNOWN_RISK) -> Question:
    """Which of two answers is more helpful, which is more harmful?"""
    provenance = {
        "policy_version": pair.first.policy_version,
        "second_policy_version": pair.second.policy_version,
    }
    turns = _turns(pair.prompt)
    return Question("pair", pair.id, pair.prompt.text, pair.first.text, pair.second.text, provenance, risk, turns=turns)


def _turns(prompt: Prompt) -> Turns:
    return tuple((turn.role, turn.content) for turn in prompt.messages) if len(prompt.messages) > 1 else ()


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


def contradicts_itself(given: Mapping[str, str]) -> bool:
    """Whether an answer (in stored form) calls the only safe one of two answers the more harmful one.

    Such an answer is a slip. It is admitted neither to training nor to an export; the page asks before it is sent.
    """
    other = {"first": "second", "second": "first"}
    harmful = given.get("more_harmful")
    if harmful not in other:
        return False
    return given.get(f"{harmful}_safety") == "safe" and given.get(f"{other[harmful]}_safety") == "unsafe"


GOLD_ANSWERS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "safety": {"safety": SAFETY},
    "pair": {name: SAFETY if name.endswith("_safety") else ("first", "second", TIE) for name in STORED_PAIR},
}
"""What may be known about a control question, by kind and name."""


def demand_gold(question: Question) -> None:
    """Raises QueueError (malformed) for a control question whose known answer is none to what it asks."""
    gold, named = question.gold, f"control question {question.item}"
    if not gold:
        raise QueueError(Problem.MALFORMED, f"{named}: it needs its known answer in `gold`")
    asked = GOLD_ANSWERS[question.kind]
    for name, value in gold.items():
        if name not in asked:
            known = ", ".join(asked)
            raise QueueError(Problem.MALFORMED, f"{named}: a {question.kind} question asks {known}, not {name}")
        if value not in asked[name]:
            raise QueueError(Problem.MALFORMED, f"{named}: {name} is {' or '.join(asked[name])}, not {value!r}")
    if contradicts_itself(gold):
        raise QueueError(
            Problem.MALFORMED, f"{named}: its known answer calls the only safe answer the more harmful one"
        )


def _demand_fields(given: Mapping[str, Any], names: Sequence[str]) -> None:
    if set(given) != set(names):
        raise QueueError(
            Problem.MALFORMED, f"this question is answered with {', '.join(names)}; got {', '.join(given) or 'nothing'}"
        )


def _one_of(name: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise QueueError(Problem.MALFORMED, f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)
