"""The limits of a recipe as typed limits, whether it states `limits:` or has the `constraints` of version 0.1.

    dual: {threshold: 0.3}, feedback: {signal: unsafe_rate, labels_each: 2}
    limits: {cost: {rate: {world: cost}, at_most: 30 %, labels_each: 2}}           the same, as it is written today

Recipes come as plain mappings: a run that is read need not have a recipe of today.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pddpo_ray.limits.quantities import VERDICT, Amount, Kind, Limit, Quantity
from pddpo_ray.limits.reading import StatedLimit, stated_limits

KIND_OF_SIGNAL: Mapping[str, Kind] = {"logit_labels": "logit", "unsafe_rate": "rate", "cost_model": "mean"}
SCORE = "score"
"""Unit of a cost model's numbers, which has no other name."""


def in_stage_order(stated: Sequence[StatedLimit]) -> tuple[StatedLimit, ...]:
    """Limits on comparisons first, as their stages come first."""
    return tuple(sorted(stated, key=lambda one: one.limit.quantity.kind != "logit"))


def stated_of(recipe: Mapping[str, Any]) -> tuple[StatedLimit, ...]:
    """The stated limits of a recipe in the run's order; () where it has the form of version 0.1."""
    if not recipe.get("limits"):
        return ()
    document = {key: recipe[key] for key in ("limits", "prompts") if recipe.get(key)}
    return in_stage_order(stated_limits(document, "recipe"))


def typed_limits(recipe: Mapping[str, Any]) -> tuple[Limit, ...]:
    """Every limit of a recipe in the run's order, the first being the one whose metrics have no name in front."""
    if recipe.get("limits"):
        return tuple(one.limit for one in stated_of(recipe))
    quantity = _quantity(recipe)
    return tuple(Limit(name, Amount(quantity, bound)) for name, bound in _thresholds(recipe).items())


def limits_lines(recipe: Mapping[str, Any], *, one_line: bool = False) -> str | None:
    """What version 0.1 says, in the lines of today (YAML); None where the recipe has `limits:` already.

    Raises ValueError with the reason where no line of `limits:` says the same.
    """
    if recipe.get("limits"):
        return None
    feedback = recipe.get("feedback") or {}
    kind, labels = _kind(recipe), int(feedback.get("labels_each") or 1)
    limits = {}
    for limit in typed_limits(recipe):
        entry: dict[str, Any] = {kind: _source(kind, feedback, limit.name), "at_most": _written(limit)}
        limits[limit.name] = entry | ({"labels_each": labels} if kind != "mean" else {})
    lines = {"limits": limits}
    flow = True if one_line else None
    text: str = yaml.safe_dump(lines, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=10_000)
    return text.strip() if one_line else text


def _source(kind: Kind, feedback: Mapping[str, Any], name: str) -> dict[str, Any]:
    match feedback.get("kind", "world"):
        case "world":
            return {"world": name}
        case "people":
            return {"people": {}}
        case "model" if kind == "mean" and (feedback.get("cost") or {}).get("path"):
            cost, usual = feedback["cost"], {"scale": 1.0, "shift": 0.0}
            turned = {key: cost[key] for key in usual if cost.get(key) not in (None, usual[key])}
            return {"score_model": cost["path"], **turned}
        case "judge":
            raise ValueError("feedback.kind=judge asks about harm; write that question: {judge: {question: FILE}}")
        case other:
            raise ValueError(f"feedback.kind={other} with feedback.signal={feedback.get('signal')} has no such source")


def _written(limit: Limit) -> Any:
    number = limit.bound.number
    return f"{100 * number:.12g} %" if limit.quantity.kind == "rate" else number


def _kind(recipe: Mapping[str, Any]) -> Kind:
    return KIND_OF_SIGNAL[(recipe.get("feedback") or {}).get("signal") or "logit_labels"]


def _quantity(recipe: Mapping[str, Any]) -> Quantity:
    kind = _kind(recipe)
    if kind == "rate":
        return Quantity(kind, VERDICT.unit, None, VERDICT.low, VERDICT.high)
    if kind == "mean":
        return Quantity(kind, SCORE)
    bound = float((recipe.get("dual") or {}).get("cost_max") or 2.0)
    return Quantity(kind, "logit", None, -bound, bound)


def _thresholds(recipe: Mapping[str, Any]) -> dict[str, float]:
    """Limit of every constraint, in the recipe's order."""
    usual = (recipe.get("dual") or {}).get("threshold") or 0.0
    given = {one["name"]: one.get("threshold") for one in recipe.get("constraints") or ({"name": "cost"},)}
    return {str(name): float(usual if bound is None else bound) for name, bound in given.items()}
