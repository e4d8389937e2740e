"""Former keys that stated a limit, and today's `limits:` lines with the user's own values.

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
"""Refused keys, by their place in a recipe."""
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
    items = limits.items() if isinstance(limits, Mapping) else ()
    mixed = [("limits", name, kind, "mixed") for name, limit in items for kind in KINDS if at(limit, (kind,)) == MIXED]
    return [*(keys for keys in KEYS if _has(recipe, keys)), *mixed]


def refusal(recipe: Tree, *, override: bool = False) -> str | None:
    """Why a recipe is refused and what to write instead, in a file or as an override; None: it is accepted."""
    key_paths = former_keys(recipe)
    if not key_paths:
        return None
    key, entries = ".".join(key_paths[0]), _entries(recipe, key_paths)
    if entries is None:
        names = ", ".join(f"limits.{name}" for name in recipe["limits"])
        return f"`{key}` is no setting: each limit states its own ({names}); leave it out"
    if not any(entries.values()):
        return f"`{key}` is no setting: limits say what must hold; leave it out"
    unknown = any(entry.get("at_most") == UNKNOWN for entry in entries.values())
    note = f", {UNKNOWN} being your limit on that scale" if unknown else ""
    return f"`{key}` is no setting: limits say what must hold; write {_limits_text(entries, override)}{note}"


def limits_of_today(recipe: Tree) -> dict[str, Any]:
    """A recipe's limits, from `limits:` or from the former keys."""
    limits = recipe.get("limits") or _entries({**recipe, "limits": {}}, former_keys(recipe)) or {}
    return {name: _with_audit(recipe, limit) for name, limit in limits.items()}


def _with_audit(recipe: Tree, limit: Any) -> Any:
    """A limit with the source `mixed`, as a model's that people audit."""
    if not isinstance(limit, Mapping) or MIXED not in limit.values():
        return limit
    today = {key: LABELLERS["mixed"] if item == MIXED else item for key, item in limit.items() if key != "learned_from"}
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


def _entries(recipe: Tree, key_paths: list[tuple[str, ...]]) -> dict[str, dict[str, Any]] | None:
    """Changes to the recipe's limits, by name; None where it has several that the keys do not change."""
    limits = recipe.get("limits")
    items = limits.items() if isinstance(limits, Mapping) else ()
    below: dict[str, Tree] = {name: limit if isinstance(limit, Mapping) else {} for name, limit in items}
    constraints = recipe.get("constraints")
    entries = [entry for entry in constraints if isinstance(entry, Mapping)] if isinstance(constraints, list) else []
    if entries:
        names = [str(entry.get("name", "cost")) for entry in entries]
        usual = [below.get(name) or below.get("cost") or {} for name in names]
        return {name: _entry(recipe, name, *arguments) for name, *arguments in zip(names, entries, usual, strict=True)}
    whole = {name: _entry(recipe, _cost(limit), {}, limit) for name, limit in (below or {"cost": {}}).items()}
    if not below or (len(below) == 1 and ("feedback", "signal") in key_paths):
        return whole
    limit_keys = [ONE_KEY[keys] for keys in key_paths if keys in ONE_KEY and at(recipe, keys) is not None]
    limit_keys += [key for keys in key_paths if keys[-1] == "mixed" for key in (keys[-2], AUDIT)]
    if len(below) > 1:
        if any("logit" not in limit for limit in below.values()):
            return None
        limit_keys = [key for key in limit_keys if key != "at_most"]
    changes = {name: {key: entry[key] for key in limit_keys if key in entry} for name, entry in whole.items()}
    return changes if len(below) == 1 or any(changes.values()) else None


def _cost(limit: Tree) -> str:
    """The world's cost that a limit is about."""
    sources = (source for key, source in limit.items() if key in KINDS and isinstance(source, Mapping))
    return str(next(sources, {}).get("world", "cost"))


def _entry(recipe: Tree, cost: str, constraint: Tree, below: Tree) -> dict[str, Any]:
    """The full limit on a world's cost of that name; `below` gives what the keys leave out."""
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
    dual = {key: constraint[key] for key in ("rho", "first") if constraint.get(key) is not None}
    return {**entry, **({"dual": dual} if dual else {})}


def _source(recipe: Tree, cost: str) -> dict[str, Any]:
    """The labeller that `feedback` names."""
    kind = at(recipe, ("feedback", "kind")) or "world"
    return {"world": cost} if kind == "world" else dict(LABELLERS.get(str(kind), {}))


def _limits_text(entries: Mapping[str, Mapping[str, Any]], override: bool) -> str:
    if not override:
        return flow({"limits": {name: dict(entry) for name, entry in entries.items()}})[1:-1]
    whole = [(f"limits.{name}", entry) for name, entry in entries.items() if set(entry) & set(KINDS)]
    parts = [(f"limits.{name}.{key}", value) for name, entry in entries.items() for key, value in entry.items()]
    return " ".join(shlex.quote(f"{key}={flow(value)}") for key, value in whole or parts)


def flow(value: Any) -> str:
    """The value as one line of YAML."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _has(recipe: Any, keys: tuple[str, ...]) -> bool:
    section = at(recipe, keys[:-1])
    return isinstance(section, Mapping) and keys[-1] in section


def at(recipe: Any, keys: tuple[str, ...]) -> Any:
    """The value at a key; None where there is none."""
    for key in keys:
        recipe = recipe.get(key) if isinstance(recipe, Mapping) else None
    return recipe
