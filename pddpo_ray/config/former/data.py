"""Translates `world: {kind: none, ...}`, where earlier versions named files of real text, into today's `data`.

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
    """Why a recipe is refused and what to write instead, in a file or as an override; None: it is accepted."""
    key_paths = former_keys(recipe)
    if not key_paths:
        return None
    data = _data(recipe, key_paths)
    lines = shlex.join(f"data.{key}={flow(value)}" for key, value in data.items())
    text = lines if override else flow({"data": data})[1:-1]
    return f"`{'.'.join(key_paths[0])}` is no setting: files of real text stand under `data`; write {text}"


def in_todays_keys(recipe: Tree) -> dict[str, Any]:
    """The recipe of a run of an earlier version, with its files under `data`."""
    key_paths = former_keys(recipe)
    if not key_paths:
        return dict(recipe)
    return {**recipe, "world": None, "data": _data(recipe, key_paths)}


def _data(recipe: Tree, key_paths: list[tuple[str, ...]]) -> dict[str, Any]:
    """The settings under `data`, with former defaults: the sample pairs, and a model made from them."""
    world, below = _section(recipe, "world"), _section(recipe, "data")
    data = {key: world[key] for _, key in key_paths if key != "kind"}
    if world.get("kind") == FORMER:
        settings = {**below, **data}
        pairs = settings.get("helpful") or settings.get("harmless") or _section(recipe, "reward").get("pairs")
        data |= {} if pairs else {"sample": True}
        data |= {} if _section(recipe, "model").get("reference") or settings.get("reference") else {"reference": {}}
    return data


def _section(recipe: Tree, key: str) -> Tree:
    value = recipe.get(key)
    return value if isinstance(value, Mapping) else {}
