"""The measurements of a run's journal as tables of costs, as estimates read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pddpo_ray.journal import JournalReader
from pddpo_ray.limits.of_recipe import stated_of
from pddpo_ray.parts.measuring import costs_of_values, table_of
from pddpo_ray.records import Array, MeasuredValues


def measured_in(journal: JournalReader, number: int, phase: str = "measure-answers") -> dict[str, Any]:
    """Ids of a phase's answers; costs and against [n, I], None: no number; `failed` as [row, column]; what people said
    of those that they audited as [row, column, cost, chance]."""
    (entry,) = journal.phases(number, phase)
    ids = entry.payload["ids"]
    table = table_of(journal.measurements(number, phase), stated_of(journal.recipe), ids, 2.0)
    audited = np.argwhere(table.chance > 0).tolist()
    return {
        "ids": ids,
        "costs": _with_none(table.costs),
        "against": _with_none(table.against),
        "failed": np.argwhere(table.failed).tolist(),
        "audit": [[row, column, table.people[row, column], table.chance[row, column]] for row, column in audited],
    }


def costs_of(stated: Any, measured: MeasuredValues, cost_max: float = 2.0) -> tuple[Array, Array]:
    """Costs and their noise of what a measure gave. [n, I] x2"""
    both = [costs_of_values(one, measured.values[:, column], cost_max) for column, one in enumerate(stated)]
    return np.stack([costs for costs, _ in both], axis=1), np.stack([noise for _, noise in both], axis=1)


def _with_none(table: Array) -> list[list[float | None]]:
    return [[None if np.isnan(cost) else cost for cost in row] for row in table.tolist()]
