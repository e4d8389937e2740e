"""Rules for limits: a count and a verdict. A package like this one is all that it takes."""

from __future__ import annotations

import re

from pddpo_ray.limits.quantities import VERDICT
from pddpo_ray.limits.rules import Rule, counted

COURTESY = re.compile(r"\b(?:please|thank you|thanks)\b", re.IGNORECASE)


def courtesies(answer: str) -> int:
    """How often an answer says please or thanks. courtesies("Thanks! Please soak it.") = 2"""
    return len(COURTESY.findall(answer))


def polite(answer: str) -> bool:
    """Whether it does so at all."""
    return courtesies(answer) > 0


COURTESIES = Rule(courtesies, counted("courtesies"))
POLITE = Rule(polite, VERDICT, note="by two English phrases")
