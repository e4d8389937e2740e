"""Keys that stated a limit before `limits:` did, and the lines that say the same today, from the user's own values.

    dual: {threshold: 0.3}, feedback: {signal: unsafe_rate, labels_each: 2}
    limits: {cost: {rate: {world: cost}, at_most: 30 %, labels_each: 2, learned_from: comparisons}}

Recipes come as plain mappings, as they stand in a file or in the journal of an older run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from pddpo_ray.limits.audits import AUDIT, AUDITED
from pddpo_ray.limits.reading import COMPARISONS, KINDS, LABELLERS

KEYS: tuple[tuple[str, ...], ...] = (
    ("constraints",), ("feedback", "signal"), ("dual", "threshold"), ("feedback", "labels_each"),
    ("certificate", "confidence"), *(("feedback", key) for key in ("unsure", "random")),
)  # fmt: skip
"""What is refused, by its place in a recipe."""
ONE_KEY: Mapping[tuple[str, ...], str] = {
    ("dual", "threshold"): "at_most", ("feedback", "labels_each"): "labels_each",
    ("certificate", "confidence"): "confidence",
    ("feedback", "unsure"): AUDIT, ("feedback", "random"): AUDIT,
}  # fmt: skip
"""What became one key of a limit."""
MIXED = {"mixed": "cost"}
"""A source that was a model with people beside it, `feedback.unsure` and `feedback.random` answers a round."""
KIND_OF_SIGNAL: Mapping[str, str] = {"logit_labels": "logit", "unsafe_rate": "rate", "cost_model": "mean"}
UNKNOWN = "D"
"""Stands for a limit on a scale on which the recipe gives none."""
LABELS_EACH = 32
"""Labels of an answer where a former recipe does not say."""

Tree = Mapping[str, Any]


def former_keys(recipe: Tree) -> list[tuple[str, ...]]:
    """The refused keys that a recipe has, in the order of `KEYS`, and then the sources of its limits."""
    limits = recipe.get("limits")
    stated = limits.items() if isinstance(limits, Mapping) else ()
    mixed = [("limits", name, kind, "mixed") for name, one in stated for kind in KINDS if at(one, (kind,)) == MIXED]
    return [*(keys for keys in KEYS if _has(recipe, keys)), *mixed]


def refusal(recipe: Tree, *, override: bool = False) -> str | None:
    """Why a recipe is not read, with what to write in its place, in a file or as an override; None: it is read."""
    found = former_keys(recipe)
    if not found:
        return None
    key, entries = ".".join(found[0]), _entries(recipe, found)
    if entries is None:
        names = ", ".join(f"limits.{name}" for name in recipe["limits"])
        return f"`{key}` is no setting: each limit states its own ({names}); leave it out"
    if not any(entries.values()):
        return f"`{key}` is no setting: limits say what must hold; leave it out"
    unknown = any(entry.get("at_most") == UNKNOWN for entry in entries.values())
    own = f", {UNKNOWN} being your limit on that scale" if unknown else ""
    return f"`{key}` is no setting: limits say what must hold; write {_written(entries, override)}{own}"


def limits_of_today(recipe: Tree) -> dict[str, Any]:
    """What a recipe states under `limits:`, or said by the former keys."""
    limits = recipe.get("limits") or _entries({**recipe, "limits": {}}, former_keys(recipe)) or {}
    return {name: _with_audit(recipe, one) for name, one in limits.items()}


def _with_audit(recipe: Tree, limit: Any) -> Any:
    """What a model measured with people beside it, as one that they audit."""
    if not isinstance(limit, Mapping) or MIXED not in limit.values():
        return limit
    today = {key: LABELLERS["mixed"] if one == MIXED else one for key, one in limit.items() if key != "learned_from"}
    return {**today, AUDIT: _audit(recipe)}


def _audit(recipe: Tree) -> dict[str, int]:
    unsure, random = at(recipe, ("feedback", "unsure")), at(recipe, ("feedback", "random"))
    unsure = AUDITED["unsure"] if unsure is None else int(unsure)
    return {"people": unsure + (AUDITED["people"] - AUDITED["unsure"] if random is None else int(random)),
            "unsure": unsure}  # fmt: skip


def in_todays_keys(recipe: Tree) -> dict[str, Any]:
    """The recipe of a run of an earlier version, with its limits under `limits:`."""
    tree = {**recipe, "limits": limits_of_today(recipe)}
    for *sections, key in KEYS:
        for section in sections:
            if isinstance(tree.get(section), Mapping):
                tree[section] = {name: value for name, value in tree[section].items() if name != key}
        if not sections:
            tree.pop(key, None)
    return tree


def _entries(recipe: Tree, found: list[tuple[str, ...]]) -> dict[str, dict[str, Any]] | None:
    """What to lay on the recipe's limits, by name; None where it has several, of which the keys say nothing."""
    limits = recipe.get("limits")
    stated = limits.items() if isinstance(limits, Mapping) else ()
    below: dict[str, Tree] = {name: one if isinstance(one, Mapping) else {} for name, one in stated}
    constraints = recipe.get("constraints")
    listed = [one for one in constraints if isinstance(one, Mapping)] if isinstance(constraints, list) else []
    if listed:
        names = [str(one.get("name", "cost")) for one in listed]
        usual = [below.get(name) or below.get("cost") or {} for name in names]
        return {name: _entry(recipe, name, *one) for name, *one in zip(names, listed, usual, strict=True)}
    whole = {name: _entry(recipe, _cost(one), {}, one) for name, one in (below or {"cost": {}}).items()}
    if not below or (len(below) == 1 and ("feedback", "signal") in found):
        return whole
    wanted = [ONE_KEY[keys] for keys in found if keys in ONE_KEY and at(recipe, keys) is not None]
    wanted += [key for keys in found if keys[-1] == "mixed" for key in (keys[-2], AUDIT)]
    if len(below) > 1:
        if any("logit" not in one for one in below.values()):
            return None
        wanted = [key for key in wanted if key != "at_most"]
    laid = {name: {key: one[key] for key in wanted if key in one} for name, one in whole.items()}
    return laid if len(below) == 1 or any(laid.values()) else None


def _cost(limit: Tree) -> str:
    """The world's cost that a limit is about."""
    sources = (source for key, source in limit.items() if key in KINDS and isinstance(source, Mapping))
    return str(next(sources, {}).get("world", "cost"))


def _entry(recipe: Tree, cost: str, constraint: Tree, below: Tree) -> dict[str, Any]:
    """The limit on a world's cost of that name in full; what the keys leave out is as in `below`."""
    signal, labels = at(recipe, ("feedback", "signal")), at(recipe, ("feedback", "labels_each"))
    usual = next((key for key in below if key in KINDS), "logit")
    kind: str = KIND_OF_SIGNAL.get(str(signal)) or usual
    bound = constraint.get("threshold")
    if bound is None:
        bound = at(recipe, ("dual", "threshold"))
    if bound is None:
        bound = below.get("at_most", 0.0) if kind == usual or not below else UNKNOWN
    share = kind == "rate" and isinstance(bound, int | float)
    entry: dict[str, Any] = {kind: _source(recipe, cost), "at_most": f"{100 * bound:.12g} %" if share else bound}
    if kind != "mean":
        entry["labels_each"] = labels or below.get("labels_each") or LABELS_EACH
    if at(recipe, ("feedback", "kind")) == "mixed" or {"unsure", "random"} & set(recipe.get("feedback") or ()):
        entry |= {AUDIT: _audit(recipe)}
    elif kind != "logit":
        entry["learned_from"] = COMPARISONS
    confidence = at(recipe, ("certificate", "confidence"))
    if isinstance(confidence, float) and confidence != 0.95:
        entry["confidence"] = f"{100 * confidence:.12g} %"
    own = {key: constraint[key] for key in ("rho", "first") if constraint.get(key) is not None}
    return {**entry, **({"dual": own} if own else {})}


def _source(recipe: Tree, cost: str) -> dict[str, Any]:
    """Who labels: the labeller that `feedback` names."""
    kind = at(recipe, ("feedback", "kind")) or "world"
    return {"world": cost} if kind == "world" else dict(LABELLERS.get(str(kind), {}))


def _written(entries: Mapping[str, Mapping[str, Any]], override: bool) -> str:
    if not override:
        return flow({"limits": {name: dict(entry) for name, entry in entries.items()}})[1:-1]
    whole = [(f"limits.{name}", entry) for name, entry in entries.items() if set(entry) & set(KINDS)]
    parts = [(f"limits.{name}.{key}", value) for name, entry in entries.items() for key, value in entry.items()]
    return " ".join(shlex.quote(f"{key}={flow(value)}") for key, value in whole or parts)


def flow(value: Any) -> str:
    """As YAML writes it in one line."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _has(recipe: Any, keys: tuple[str, ...]) -> bool:
    section = at(recipe, keys[:-1])
    return isinstance(section, Mapping) and keys[-1] in section


def at(recipe: Any, keys: tuple[str, ...]) -> Any:
    """What stands at a key; None where there is nothing."""
    for key in keys:
        recipe = recipe.get(key) if isinstance(recipe, Mapping) else None
    return recipe
