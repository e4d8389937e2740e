"""The limits of a recipe as typed limits. Recipes come as plain mappings: a run that is read need not have one of
today."""

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
    stated = [_in_box(one, bound) for one in stated_limits({"limits": limits, **sets}, "recipe")]
    return tuple(sorted(stated, key=lambda one: one.limit.quantity.kind != "logit"))


def typed_limits(recipe: Mapping[str, Any]) -> tuple[Limit, ...]:
    """Every limit of a recipe in the run's order, the first being the one whose metrics have no name in front."""
    return tuple(one.limit for one in stated_of(recipe))


def _in_box(one: StatedLimit, bound: float) -> StatedLimit:
    if one.limit.quantity.kind != "logit" or one.limit.quantity.bounded:
        return one
    return replace(one, limit=one.limit.within(-bound, bound))


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
    return all(one.labelled for one in limits)
