"""A run's estimate from labels of single answers, without the run: from their records to the costs and the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pddpo_ray.journal.rows import label_measurements
from pddpo_ray.limits.reading import FEEDBACK, stated_limit
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.parts.limits import cost_estimates
from pddpo_ray.parts.measuring import measured_answers, table_of
from pddpo_ray.records import CostEstimate, SafetyLabels


def label_estimate(
    labelled: Sequence[SafetyLabels], *, labels_each: int, cost_max: float, kind: str = "logit"
) -> CostEstimate:
    """Of one limit of this kind that feedback labels, every answer a draw of its own."""
    given = {kind: {"world": "cost"}, "at_most": 0.0 if kind == "logit" else "50 %", "labels_each": labels_each}
    stated = stated_limit("cost", given, "test")
    limit = stated.limit.within(-cost_max, cost_max) if kind == "logit" else stated.limit
    stated = replace(stated, limit=limit, source=replace(stated.source, kind=FEEDBACK, labeller="world"))
    answers = [one.response for one in labelled]
    ids, prompts = [one.id for one in answers], {one.prompt.token_ids for one in answers}
    held = HeldLimit(stated, 1.0, dict.fromkeys(prompts, 1.0))
    table = table_of(label_measurements(labelled, "test"), [stated], ids, cost_max)
    factors = dict.fromkeys(prompts, np.ones(1))
    [estimate], _ = cost_estimates([held], measured_answers(table, answers, ids, 1), factors)
    return estimate
