"""Data in and out: every public preference format, checked row by row, in bounded memory."""

from pddpo_ray.data.example import Answer, Dimension, Example
from pddpo_ray.data.inspection import Inspection, Settings, inspect
from pddpo_ray.data.problems import Bad, Good, Limits, Problem
from pddpo_ray.records import Message

__all__ = [
    "Answer",
    "Bad",
    "Dimension",
    "Example",
    "Good",
    "Inspection",
    "Limits",
    "Message",
    "Problem",
    "Settings",
    "inspect",
]
