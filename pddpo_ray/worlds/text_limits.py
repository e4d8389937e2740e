"""Limits on a text world: every answer's measure from the world's own costs, or from the limit's source on its text.

Text outside the grammar is one outcome. It has the worst value of every measure, as it has the worst cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from pddpo_ray.errors import UserError
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import Source
from pddpo_ray.records import Array
from pddpo_ray.theory.prompt_sets import PromptSets
from pddpo_ray.worlds.limit_truth import measured_texts
from pddpo_ray.worlds.table_limits import TableLimits, costs_of, on_prompts
from pddpo_ray.worlds.text import TextWorld

ANSWER_ALONE = ("rule", "regex", "json_schema")
"""Sources that look at the answer and not at its prompt."""
ENUMERABLE = ("world", *ANSWER_ALONE, "function", "classifier", "score_model")
"""Sources whose value of every answer can be had; a judge, an endpoint, a grader or people would have to be asked."""


def text_limits(
    world: TextWorld,
    stated: Sequence[StatedLimit],
    sources: Sequence[Source | None],
    sets: PromptSets | None,
    cost_max: float,
) -> TableLimits:
    """Sources are None where the world itself measures; of what cannot be enumerated the costs are nan.

    Raises UserError for a measure that the world does not have.
    """
    weights, factors = on_prompts(stated, sets, world.oracle.prior)
    costs = np.stack([_costs(world, one, source) for one, source in zip(stated, sources, strict=True)])
    cell, noise = world.cell, world.label_noise
    return TableLimits(world.oracle, cell, cost_max, tuple(stated), costs, factors, weights, noise)


def _costs(world: TextWorld, stated: StatedLimit, source: Source | None) -> Array:
    """Expected cost of every outcome under one limit. [X, Y + 1]"""
    if source is None:
        name = stated.source.what
        return costs_of(stated, _own(world, stated), f"the world's `{name}`")
    ends = stated.limit.cost_range
    if stated.source.kind not in ENUMERABLE:
        return np.full(world.oracle.reward.shape, np.nan)
    if ends is None:
        raise UserError(f"{stated.where}: a mean needs `bounds: [low, high]` in a run, which its step is scaled by")
    worst = stated.limit.cost(ends[1])  # `cost` undoes itself
    prompts, answers = world.grammar.prompt_texts, world.grammar.answer_texts
    asked = prompts[:1] if stated.source.kind in ANSWER_ALONE else prompts
    table = measured_texts(source, asked, answers, worst)
    return costs_of(stated, np.broadcast_to(table, (len(prompts), table.shape[1])), source.name)


def _own(world: TextWorld, stated: StatedLimit) -> Array:
    """What the world's `cost`, or one of its further costs, says about every outcome. [X, Y + 1]"""
    logits = {"cost": world.logits, **{limit.name: limit.cost for limit in world.further}}
    kind, name = stated.limit.quantity.kind, stated.source.what
    if name not in logits or kind == "mean":
        raise UserError(
            f"{stated.where}: this world has no {kind} called `{name}`; it has the rates and logits {', '.join(logits)}"
        )
    return logits[name] if kind == "logit" else expit(logits[name])
