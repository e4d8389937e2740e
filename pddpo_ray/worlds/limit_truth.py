"""The truth about stated limits: every outcome's measure as a table.

A rate's measure is the probability of its verdict, sigmoid(cost) for the world's own; a rule's or a pattern's is what
it says about the text; `versus: reference` takes off the reference's mean, or is the chance to win against its answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.limits.sources import Answer, Source, Unmeasured
from pddpo_ray.records import Array


def measured_texts(source: Source, prompts: Sequence[str], answers: Sequence[str], elsewhere: float) -> Array:
    """What a source says about every answer to every prompt; `elsewhere`: for text outside the grammar. -> [X, Y + 1]

    Raises UserError where it gives no number for a text: a truth has no gaps.
    """
    rows = [Answer(prompt, answer, where=answer) for prompt in prompts for answer in answers]
    values = source.values(rows)
    for row, value in zip(rows, values, strict=True):
        if isinstance(value, Unmeasured):
            raise UserError(f"{source.name} has no number for `{row.response}`: {value.reason}")
    table = np.array(values, dtype=np.float64).reshape(len(prompts), len(answers))
    return np.column_stack([table, np.full(len(prompts), elsewhere)])


def less_reference(measure: Array, reference: Array) -> Array:
    """m(x, y) - E_{y' ~ reference}[m(x, y')]. [X, Y], [X, Y] -> [X, Y]"""
    return np.asarray(measure - np.sum(reference * measure, axis=1, keepdims=True))


def wins_over_reference(reward: Array, reference: Array, *, chunk: int = 2000) -> Array:
    """Chance that an answer is preferred to the reference's: E_{y'} sigmoid(r(x, y) - r(x, y')). -> [X, Y]

    Pairs of answers are enumerated in chunks, Y^2 a prompt.
    """
    result = np.empty_like(reward)
    for x, (row, chances) in enumerate(zip(reward, reference, strict=True)):
        for begin in range(0, len(row), chunk):
            apart = row[begin : begin + chunk, None] - row[None, :]
            result[x, begin : begin + chunk] = (1.0 / (1.0 + np.exp(-apart))) @ chances
    return result
