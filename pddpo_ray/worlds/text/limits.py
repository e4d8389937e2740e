"""Limits on a text world: every answer's measure from the world's own costs, or from the limit's source on its text.

Text outside the grammar is one outcome. It has the worst value of every measure, as it has the worst cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from pddpo_ray.errors import UserError
from pddpo_ray.limits.reading import FEEDBACK, StatedLimit
from pddpo_ray.limits.sources import Source
from pddpo_ray.records import Array, Response
from pddpo_ray.theory.estimates.prompt_sets import PromptSets
from pddpo_ray.worlds.limit_truth import measured_texts
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.table_limits import TableLimits, costs_of, on_prompts
from pddpo_ray.worlds.text.grammar import Grammar
from pddpo_ray.worlds.text.world import TextWorld

ANSWER_ALONE = ("rule", "regex", "json_schema")
"""Sources that look at the answer and not at its prompt."""
ENUMERABLE = ("world", *ANSWER_ALONE, "function", "classifier", "score_model")
"""Sources whose value of every answer is known; a judge, an endpoint, a grader or people would have to be asked."""


CORRECTED = (FEEDBACK, "model")
"""Sources whose people are asked about the world's own cost, so that its truth is theirs."""
OWN = ("world", *CORRECTED)
"""Sources that are asked about the world's own costs, or whose errors people correct."""


def text_limits(
    world: TextWorld,
    stated_limits: Sequence[StatedLimit],
    sources: Sequence[Source | None],
    sets: PromptSets | None,
    cost_max: float,
) -> TableLimits:
    """A source is None where the world or people measure, and for a limit on the KL. Costs are nan where values cannot
    be enumerated, or where people measure or audit.

    Raises UserError for a measure that the world does not have.
    """
    weights, factors = on_prompts(stated_limits, sets, world.oracle.prior)
    single = np.stack([_single(world, entry, source) for entry, source in zip(stated_limits, sources, strict=True)])
    reference = world.oracle.reference
    costs = np.stack(
        [
            costs_of(entry, table, str(entry.source), reference)
            for entry, table in zip(stated_limits, single, strict=True)
        ]
    )
    # what people say of all answers nobody knows, unless the world's own cost stands for it
    costs[[entry.asks_people and entry.source.kind not in CORRECTED for entry in stated_limits]] = np.nan
    cell, noise = world.cell, world.label_noise
    return TableLimits(world.oracle, cell, cost_max, tuple(stated_limits), costs, single, factors, weights, noise)


def limits_of_sentences(
    grammar: Grammar, stated_limits: Sequence[StatedLimit], sources: Sequence[Source], sets: PromptSets | None
) -> TableLimits:
    """What is known of a text world's limits before its reference is: by sources alone, as if all answers were
    equally likely. What policies reach under them is what they reach under any reference, unless it is in the limit.
    """
    prompts = len(grammar.prompt_texts)
    reference = np.full((prompts, len(grammar.answer_texts) + 1), 1.0 / (len(grammar.answer_texts) + 1))
    nothing, prior = np.zeros_like(reference), np.full(prompts, 1.0 / prompts)
    weights, factors = on_prompts(stated_limits, sets, prior)
    single = np.stack([of_texts(grammar, entry, source) for entry, source in zip(stated_limits, sources, strict=True)])
    costs = np.stack(
        [costs_of(entry, table, str(entry.source)) for entry, table in zip(stated_limits, single, strict=True)]
    )
    sentences = Oracle(prior, reference, nothing, nothing, beta=1.0)
    return TableLimits(sentences, _no_cell, 1.0, tuple(stated_limits), costs, single, factors, weights)


def _no_cell(answer: Response) -> tuple[int, int]:
    raise ValueError(f"sentences alone label no answers, and {answer.id} is one")


def _single(world: TextWorld, entry: StatedLimit, source: Source | None) -> Array:
    """What is said of every outcome by itself under one limit; nan: unknown. [X, Y + 1]"""
    if entry.limit.quantity.kind == "kl":
        return np.zeros_like(world.oracle.reference)
    if entry.source.kind in OWN:
        return _world_values(world, entry)
    if source is None or entry.asks_people or entry.source.kind not in ENUMERABLE or entry.wins:
        return np.full(world.oracle.reward.shape, np.nan)
    return of_texts(world.grammar, entry, source)


def of_texts(grammar: Grammar, stated_limit: StatedLimit, source: Source) -> Array:
    """What a source says of every answer of a grammar by itself; of text outside it the worst. [X, Y + 1]"""
    worst = stated_limit.worst
    assert worst is not None  # a recipe is refused whose mean has no bounds
    prompts, answers = grammar.prompt_texts, grammar.answer_texts
    texts = prompts[:1] if stated_limit.source.kind in ANSWER_ALONE else prompts
    table = measured_texts(source, texts, answers, worst)
    return np.broadcast_to(table, (len(prompts), table.shape[1]))


def _world_values(world: TextWorld, entry: StatedLimit) -> Array:
    """What the world's `cost`, or one of its further costs, says about every outcome. [X, Y + 1]"""
    logits = {"cost": world.logits, **{limit.name: limit.cost for limit in world.further}}
    kind, name = entry.limit.quantity.kind, entry.compared_as
    if entry.wins:
        return world.oracle.reward
    if name not in logits or (kind == "mean" and not entry.labelled):
        raise UserError(
            f"{entry.where}: this world has no {kind} called `{name}`; it has the rates and logits {', '.join(logits)}"
        )
    return expit(logits[name]) if kind == "rate" else logits[name]
