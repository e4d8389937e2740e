"""A recipe's limits as typed limits. Recipes are plain mappings, since an old run need not have today's keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pddpo_ray.limits.audits import AUDIT
from pddpo_ray.limits.former import limits_of_today
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.limits.reading import KINDS, LABELLERS, StatedLimit, stated_limits

MODEL = LABELLERS["model"]
COST_MAX = 2.0
"""C where a recipe leaves `dual.cost_max` out."""


def stated_of(recipe: Mapping[str, Any]) -> tuple[StatedLimit, ...]:
    """The limits of a recipe in the run's order: those that comparisons teach first, as their stages come first.

    A logit lies in [-C, C], C being `dual.cost_max`.
    """
    limits = limits_of_today(recipe)
    if not limits:
        return ()
    sets = {"prompts": recipe["prompts"]} if recipe.get("prompts") else {}
    bound = float((recipe.get("dual") or {}).get("cost_max") or COST_MAX)
    run_limits = [_in_box(limit, bound) for limit in stated_limits({"limits": limits, **sets}, "recipe")]
    return tuple(sorted(run_limits, key=lambda limit: limit.limit.quantity.kind != "logit"))


def typed_limits(recipe: Mapping[str, Any]) -> tuple[Limit, ...]:
    """A recipe's limits in the run's order; metrics of the first have no name in front."""
    return tuple(limit.limit for limit in stated_of(recipe))


def _in_box(limit: StatedLimit, bound: float) -> StatedLimit:
    if limit.limit.quantity.kind != "logit" or limit.limit.quantity.bounded:
        return limit
    return replace(limit, limit=limit.limit.within(-bound, bound))


def by_world(limit: Mapping[str, Any]) -> dict[str, Any]:
    """The same limit of a recipe with a world's labels in place of a cost model's that people audit."""
    if not any(limit.get(kind) == MODEL for kind in KINDS):
        return dict(limit)
    return {key: {"world": "cost"} if value == MODEL else value for key, value in limit.items() if key != AUDIT}


class Labelled(Protocol):
    """A limit that knows whether feedback labels it."""

    @property
    def labelled(self) -> bool: ...


def labelled_by_feedback(limits: Iterable[Labelled]) -> bool:
    """Whether `feedback` labels the limits of a run, which it does for all of them or for none."""
    return all(limit.labelled for limit in limits)
