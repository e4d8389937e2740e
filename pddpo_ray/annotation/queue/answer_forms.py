"""What may be answered to a question, on the screen and in store. Pure: no database, no web.

People see two answers left and right; what is stored speaks of first and second, so the random screen order never leaks
into the data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.parts.questions import TIE, Given, Question, contradicts_itself

LANGUAGE = r"[a-z]{2,3}"
"""A language's code, e.g. de."""

SAFETY = ("safe", "unsafe")
SIDES = {False: {"left": "first", "right": "second"}, True: {"left": "second", "right": "first"}}
REASONS = ("too_harmful", "cannot_judge", "language", "broken", "other")
PAIR_FIELDS = ("more_helpful", "more_harmful", "left_safety", "right_safety")
STORED_PAIR = ("more_helpful", "more_harmful", "first_safety", "second_safety")
STORED: Mapping[str, tuple[str, ...]] = {
    "safety": ("safety",), "pair": STORED_PAIR, "better": ("better",), "number": ("number",),
}  # fmt: skip
"""Fields of a stored answer, by the kind of the question."""
OF_LIMITS_ALONE = ("better", "number")
"""Kinds that only limits ask, never about safety."""
AGREED_ON: Mapping[str, str] = {"safety": "safety", "pair": "more_harmful", "better": "better"}
"""Field on which agreement is measured, by kind: harm for a pair, since training depends on it most. Numbers have none:
two are seldom equal, and the measure is for nominal labels."""


def round_digest(questions: Sequence[Question]) -> str:
    """Hash of a whole batch in order; the same batch opened twice is one batch."""
    return hashlib.sha256("\n".join(question.digest() for question in questions).encode()).hexdigest()


def stored_form(kind: str, answer: Mapping[str, Any], swap: bool, bounds: tuple[float, float] | None = None) -> Given:
    """An answer as it came from the screen (left, right) in terms of first and second.

    `swap`: the second answer was shown on the left. `bounds` are those of a number. Raises QueueError (malformed) with
    the field that is wrong.
    """
    if kind == "safety":
        _demand_fields(answer, ("safety",))
        return {"safety": _one_of("safety", answer["safety"], SAFETY)}
    if kind == "better":
        _demand_fields(answer, ("better",))
        return {"better": SIDES[swap].get(_one_of("better", answer["better"], ("left", "right", TIE)), TIE)}
    if kind == "number":
        _demand_fields(answer, ("number",))
        return {"number": _number_within(answer["number"], bounds)}
    _demand_fields(answer, PAIR_FIELDS)
    stored = {
        name: SIDES[swap].get(_one_of(name, answer[name], ("left", "right", TIE)), TIE)
        for name in ("more_helpful", "more_harmful")
    }
    for side, order in SIDES[swap].items():
        stored[f"{order}_safety"] = _one_of(f"{side}_safety", answer[f"{side}_safety"], SAFETY)
    return stored


def screen_form(kind: str, stored: Mapping[str, str], swap: bool) -> Given:
    """The inverse of `stored_form`: what the person saw and pressed."""
    if kind in ("safety", "number"):
        return dict(stored)
    sides = {order: side for side, order in SIDES[swap].items()}
    if kind == "better":
        return {"better": sides.get(stored["better"], TIE)}
    choices = {name: sides.get(stored[name], TIE) for name in ("more_helpful", "more_harmful")}
    return choices | {f"{side}_safety": stored[f"{order}_safety"] for side, order in SIDES[swap].items()}


GOLD_ANSWERS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "safety": {"safety": SAFETY},
    "pair": {name: SAFETY if name.endswith("_safety") else ("first", "second", TIE) for name in STORED_PAIR},
}
"""What may be known about a control question, by kind and name."""


def demand_gold(question: Question) -> None:
    """Raises QueueError (malformed) for a control question whose known answer does not fit the question."""
    gold, prefix = question.gold, f"control question {question.item}"
    if question.kind not in GOLD_ANSWERS:
        raise QueueError(Problem.MALFORMED, f"{prefix}: a control question asks about safety or about a pair")
    if not gold:
        raise QueueError(Problem.MALFORMED, f"{prefix}: it needs its known answer in `gold`")
    fields = GOLD_ANSWERS[question.kind]
    for name, value in gold.items():
        if name not in fields:
            names = ", ".join(fields)
            raise QueueError(Problem.MALFORMED, f"{prefix}: a {question.kind} question asks {names}, not {name}")
        if value not in fields[name]:
            raise QueueError(Problem.MALFORMED, f"{prefix}: {name} is {' or '.join(fields[name])}, not {value!r}")
    if contradicts_itself(gold):
        raise QueueError(
            Problem.MALFORMED, f"{prefix}: its known answer calls the only safe answer the more harmful one"
        )


def _demand_fields(reply: Mapping[str, Any], names: Sequence[str]) -> None:
    if set(reply) != set(names):
        raise QueueError(
            Problem.MALFORMED, f"this question is answered with {', '.join(names)}; got {', '.join(reply) or 'nothing'}"
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
