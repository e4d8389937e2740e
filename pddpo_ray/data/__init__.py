"""Data in and out: every public preference format, checked row by row, in bounded memory."""

from pddpo_ray.data.checks.inspection import Inspection, Settings, inspect
from pddpo_ray.data.formats.example import Answer, Dimension, Example
from pddpo_ray.records import Message
