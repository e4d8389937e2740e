"""What people are asked and what they may answer. Pure: no database, no web.

A *safety* question shows one answer: is it safe or unsafe? A *pair* question shows two answers left and right: which
is more helpful, which is more harmful, is each safe. One pair question makes one complete row of the PKU-SafeRLHF
kind. A limit's own question is a safety question with a text (yes or no), a *better* question (which of two answers is
the better one) or a *number* question (a number within bounds). People see left and right; what is stored speaks of
first and second, so the random screen order never leaks into the data.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pddpo_ray.annotation.queue_rules import Problem, QueueError
from pddpo_ray.records import Pair, Prompt, Response

Kind = Literal["safety", "pair", "better", "number"]
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
STORED: Mapping[str, tuple[str, ...]] = {
    "safety": ("safety",), "pair": STORED_PAIR, "better": ("better",), "number": ("number",),
}  # fmt: skip
"""What a stored answer says, by the kind of the question."""
OF_LIMITS_ALONE = ("better", "number")
"""Kinds that only limits ask, never about safety."""
AGREED_ON: Mapping[str, str] = {"safety": "safety", "pair": "more_harmful", "better": "better"}
"""On what people's agreement is told, by the kind: of a pair on harm, which training depends on most. Two numbers are
seldom equal, and are no agreement or disagreement of the nominal kind."""
WINS: Mapping[str, float] = {"first": 1.0, TIE: 0.5, "second": 0.0}
"""What the choice of the better answer counts for the first one."""


@dataclass(frozen=True)
class Question:
    """One item to be labelled. `item` is the response's or the pair's id in the run.

    `provenance` says who wrote the answers (`policy_version`, for a pair also `second_policy_version`) and is never
    shown to annotators. `gold` is the known answer of a control question in stored form, e.g. {"safety": "unsafe"}.
    `risk` in [0, 1] is compared with what a person agreed to see, and is the highest where nobody knows it; `priority`
    orders questions of one round. `asks` is a limit's own question, in Markdown; of a safety question "unsafe" then is
    its yes and "safe" its no; None: whether the answer is safe, or which is better. `bounds` are those of a number.
    `language` is the code of the language that one has to know for it; `turns` are role and text of a prompt that is a
    conversation.
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
    bounds: tuple[float, float] | None = None

    def digest(self) -> str:
        """Hash of what is shown and where it comes from. Neither who is asked nor how it is laid out changes it."""
        shown = [self.kind, self.item, self.prompt, self.first, self.second]
        content: list[Any] = [*shown, dict(self.provenance), self.gold]
        if self.asks is not None:  # questions of earlier versions keep their hash
            content.append(self.asks)
        if self.bounds is not None:
            content.append(list(self.bounds))
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def safety_question(response: Response, *, risk: float = UNKNOWN_RISK, asks: str | None = None) -> Question:
    """Is this answer safe? Or what a limit asks about it."""
    provenance = {"policy_version": response.policy_version}
    turns = _turns(response.prompt)
    return Question(
        "safety", response.id, response.prompt.text, response.text, None, provenance, risk, asks=asks, turns=turns
    )


def number_question(response: Response, bounds: tuple[float, float], *, asks: str) -> Question:
    """What number within the bounds has this answer? By what a limit asks."""
    provenance = {"policy_version": response.policy_version}
    prompt, turns = response.prompt.text, _turns(response.prompt)
    return Question(
        "number", response.id, prompt, response.text, None, provenance, asks=asks, bounds=bounds, turns=turns
    )


def better_question(response: Response, reference: Response, *, asks: str | None = None) -> Question:
    """Which of two answers to one prompt is better? By what a limit asks, or on the whole."""
    by, turns, prompt = _written_by(response, reference), _turns(response.prompt), response.prompt.text
    return Question("better", response.id, prompt, response.text, reference.text, by, asks=asks, turns=turns)


def pair_question(pair: Pair, *, risk: float = UNKNOWN_RISK) -> Question:
    """Which of two answers is more helpful, which is more harmful?"""
    by, turns = _written_by(pair.first, pair.second), _turns(pair.prompt)
    return Question("pair", pair.id, pair.prompt.text, pair.first.text, pair.second.text, by, risk, turns=turns)


def _turns(prompt: Prompt) -> Turns:
    return tuple((turn.role, turn.content) for turn in prompt.messages) if len(prompt.messages) > 1 else ()


def _written_by(first: Response, second: Response) -> dict[str, Any]:
    return {"policy_version": first.policy_version, "second_policy_version": second.policy_version}


def round_digest(questions: Sequence[Question]) -> str:
    """Hash of a whole batch in order; the same batch opened twice is one batch."""
    return hashlib.sha256("\n".join(question.digest() for question in questions).encode()).hexdigest()


def stored_form(kind: str, given: Mapping[str, Any], swap: bool, bounds: tuple[float, float] | None = None) -> Given:
    """An answer as it came from the screen (left, right) in terms of first and second.

    `swap`: the second answer was shown on the left. `bounds` are those of a number. Raises QueueError (malformed) with
    the field that is wrong.
    """
    if kind == "safety":
        _demand_fields(given, ("safety",))
        return {"safety": _one_of("safety", given["safety"], SAFETY)}
    if kind == "better":
        _demand_fields(given, ("better",))
        return {"better": SIDES[swap].get(_one_of("better", given["better"], ("left", "right", TIE)), TIE)}
    if kind == "number":
        _demand_fields(given, ("number",))
        return {"number": _number_within(given["number"], bounds)}
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
    if kind in ("safety", "number"):
        return dict(stored)
    back = {order: side for side, order in SIDES[swap].items()}
    if kind == "better":
        return {"better": back.get(stored["better"], TIE)}
    shown = {name: back.get(stored[name], TIE) for name in ("more_helpful", "more_harmful")}
    return shown | {f"{side}_safety": stored[f"{order}_safety"] for side, order in SIDES[swap].items()}


def value_of(stored: Mapping[str, str]) -> float:
    """What a limit counts of an answer to its question: 1 for yes and for a win, 0 for no and for a loss, a half for a
    tie, or the number itself."""
    if "number" in stored:
        return float(stored["number"])
    return WINS[stored["better"]] if "better" in stored else float(stored["safety"] == "unsafe")


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
    if question.kind not in GOLD_ANSWERS:
        raise QueueError(Problem.MALFORMED, f"{named}: a control question asks about safety or about a pair")
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


def _number_within(value: Any, bounds: tuple[float, float] | None) -> str:
    low, high = bounds or (-math.inf, math.inf)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and low <= number <= high):
        raise QueueError(Problem.MALFORMED, f"number is one from {low:g} to {high:g}, not {value!r}")
    return repr(number)


def _one_of(name: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise QueueError(Problem.MALFORMED, f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)
