"""`world: {kind: none, ...}`, which named the files of real text in earlier versions, and the lines that say it today.

world: {kind: none, helpful: [a.jsonl]}     data: {helpful: [a.jsonl]}
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from pddpo_ray.config.sections.data import DataConfig
from pddpo_ray.config.sections.world import TabularWorldConfig, TextWorldConfig
from pddpo_ray.limits.former import flow

FORMER = "none"
"""The kind of world that had none."""
OF_DATA = set(DataConfig.model_fields) - set(TextWorldConfig.model_fields) - set(TabularWorldConfig.model_fields)
"""Keys that no world has."""

Tree = Mapping[str, Any]


def former_keys(recipe: Tree) -> list[tuple[str, ...]]:
    """Keys of `world` that are settings of `data` today, `world.kind` among them where it is none."""
    world = _section(recipe, "world")
    every = world.get("kind") == FORMER or (bool(recipe.get("data")) and "kind" not in world)
    return [("world", key) for key in world if key in OF_DATA or every]


def refusal(recipe: Tree, *, override: bool = False) -> str | None:
    """Why a recipe is not read, with what to write in its place, in a file or as an override; None: it is read."""
    found = former_keys(recipe)
    if not found:
        return None
    data = _data(recipe, found)
    lines = shlex.join(f"data.{key}={flow(value)}" for key, value in data.items())
    written = lines if override else flow({"data": data})[1:-1]
    return f"`{'.'.join(found[0])}` is no setting: files of real text stand under `data`; write {written}"


def in_todays_keys(recipe: Tree) -> dict[str, Any]:
    """The recipe of a run of an earlier version, with its files under `data`."""
    found = former_keys(recipe)
    if not found:
        return dict(recipe)
    return {**recipe, "world": None, "data": _data(recipe, found)}


def _data(recipe: Tree, found: list[tuple[str, ...]]) -> dict[str, Any]:
    """The same settings under `data`, and what was silent: the pairs that ship, and a model made from them."""
    world, below = _section(recipe, "world"), _section(recipe, "data")
    data = {key: world[key] for _, key in found if key != "kind"}
    if world.get("kind") == FORMER:
        stated = {**below, **data}
        pairs = stated.get("helpful") or stated.get("harmless") or _section(recipe, "reward").get("pairs")
        data |= {} if pairs else {"sample": True}
        data |= {} if _section(recipe, "model").get("reference") or stated.get("reference") else {"reference": {}}
    return data


def _section(recipe: Tree, key: str) -> Tree:
    value = recipe.get(key)
    return value if isinstance(value, Mapping) else {}
