"""Settings of earlier versions that are now fixed or moved, and what to write instead.

Recipes come as plain mappings, as they stand in a file or in the journal of an older run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from pddpo_ray.config.sections.feedback import QueueConfig
from pddpo_ray.config.sections.judge import JudgeConfig
from pddpo_ray.limits.former import at, flow
from pddpo_ray.registry import Extension, UnknownName, load

SCORED = "feedback", "feedback.model", "scorecard.scorers"
"""Where stored reward and cost models are named."""
FIXED: Mapping[str, Any] = {
    "data.reference.batch": 16,
    "data.reference.heads": "hidden / 32",
    "data.reference.intermediate": "2 hidden",
    "data.reference.layers": 2,
    "data.reference.learning_rate": 0.004,
    "dual.dead_band": False,
    "dual.lower": 0.0,
    "dual.warmup_rounds": 0,
    "explore.baseline_top_p": 0.9,
    "explore.feature_clip": 3.0,
    "explore.keep_random": 0.25,
    "explore.min_ess": 1.5,
    "explore.prior_sd": 2.0,
    "explore.proposal_weight": 0.2,
    "feedback.excluded": 0.1,
    "feedback.hard": False,
    "feedback.minutes_per_label": 0.5,
    "feedback.model.bias": 0.3,
    "feedback.model.noise": 0.7,
    "feedback.overlap_each": 3,
    "feedback.poll_s": 0.2,
    "feedback.tell.after_s": 60.0,
    "model.tf32": False,
    "offline.top_p": 0.9,
    "people.poll_s": 0.2,
    "people.tell.after_s": 60.0,
    "people.overlap_each": 3,
    "rollout.canaries": 8,
    "rollout.enforce_eager": False,
    "scorecard.alarm": 0.05,
    "scorecard.benign": 16,
    "scorecard.pairs": 64,
    "scorecard.truncated": 0.1,
    "scorers.checkpoint_steps": 20,
    "scorers.device": "auto",
    "scorers.micro": None,
    "scorers.rank": 16,
    "scorers.ridge": 0.001,
    "trainer.merge_duplicates": False,
    "trainer.refit.cold": False,
    "trainer.refit.factor": 2.0,
    "trainer.refit.growth": 1.0,
    "trainer.support.floor": 0.001,
    **{
        f"{place}.{kind}.{key}": None
        for place in SCORED
        for kind in ("reward", "cost")
        for key in ("batch", "max_tokens")
    },
}
"""Former settings with their fixed values."""
MOVED: Mapping[str, str] = {
    "rollout.batch": "rollout.max_sequences",
    "trainer.support.weight": "trainer.support",
    **{f"feedback.{key}": f"judge.{key}" for key in JudgeConfig.model_fields if key not in ("model", "timeout")},
    "feedback.request_timeout_s": "judge.timeout",
    "feedback.model.reward": "feedback.reward",
    "feedback.model.cost": "feedback.cost",
    "feedback.model.kind": "feedback.model",
    **{f"trainer.{stage}": f"trainer.stages.{stage}" for stage in ("reward", "cost", "first_reward", "first_cost")},
    **{f"offline.{stage}": f"trainer.stages.{stage}" for stage in ("compare_reward", "compare_cost")},
    "method.settings": "method",
    "ppo": "method",
    "feedback.deadline_s": "people.deadline_s",
    **{f"feedback.{key}": f"people.{key}" for key in QueueConfig.model_fields if key != "deadline_s"},
}
"""Former settings with the keys that replace them."""

Tree = Mapping[str, Any]


def former_keys(recipe: Tree) -> list[tuple[str, ...]]:
    """Keys of `FIXED` and `MOVED` that a recipe has."""
    judge = ("feedback.model",) if at(recipe, ("feedback", "kind")) == "judge" else ()
    return [keys for key in (*FIXED, *MOVED, *judge) if _has(recipe, keys := tuple(key.split(".")))]


def refusal(recipe: Tree, *, override: bool = False) -> str | None:
    """Why a recipe is refused and what to write instead, in a file or as an override; None: it is accepted."""
    key_paths = former_keys(recipe)
    if not key_paths:
        return None
    key = ".".join(key_paths[0])
    if key in FIXED:
        return f"`{key}` is no setting: it is fixed at {flow(FIXED[key])}; leave it out"
    value_of = _fit_at if override else _moved_value
    values = {_target(recipe, ".".join(keys)): value_of(recipe, keys) for keys in key_paths}
    if override:
        values = dict(_lines(values))
        lines = shlex.join(f"{target}={flow(value)}" for target, value in values.items())
        return f"`{key}` is no setting: write {lines}"
    tree: dict[str, Any] = {}
    for target, value in values.items():
        tree = replaced(tree, tuple(target.split(".")), value)
    return f"`{key}` is no setting: write {flow(tree)[1:-1]}"


def in_todays_keys(recipe: Tree) -> dict[str, Any]:
    """An earlier version's recipe in today's keys: fixed settings dropped, the others moved."""
    tree = dict(recipe)
    for keys in former_keys(recipe):
        value, key = _moved_value(tree, keys), ".".join(keys)
        tree = _without(tree, keys)
        if key not in FIXED and (value is not None or not key.startswith("offline.")):
            tree = replaced(tree, tuple(_target(recipe, key).split(".")), value)
    # former runs had the settings of all methods
    return of_its_method(tree) if at(recipe, ("ppo",)) is not None else tree


def of_its_method(tree: dict[str, Any]) -> dict[str, Any]:
    """The recipe without `method` settings that its algorithm does not have."""
    algorithm, settings = tree.get("algorithm"), tree.get("method")
    if not isinstance(algorithm, str) or not isinstance(settings, Mapping):
        return tree
    try:
        model = load("methods", algorithm, Extension).settings
    except UnknownName:
        return tree  # the key `algorithm` refuses it
    fields = {} if model is None else model.model_fields
    return {**tree, "method": {key: value for key, value in settings.items() if key in fields}}


def _moved_value(recipe: Tree, keys: tuple[str, ...]) -> Any:
    """A former key's value; a method's settings join those under `method`."""
    value = _fit_at(recipe, keys)
    if MOVED.get(".".join(keys)) != "method" or not isinstance(value, Mapping):
        return value
    section = at(recipe, ("method",)) or {}
    return {**{key: setting for key, setting in section.items() if key != "settings"}, **value}


def _fit_at(recipe: Tree, keys: tuple[str, ...]) -> Any:
    """The value at a key; of a fit without nulls, and without steps where it has epochs."""
    value = at(recipe, keys)
    if not isinstance(value, Mapping) or not {"steps", "epochs"} & set(value):
        return value
    settings = {key: setting for key, setting in value.items() if setting is not None}
    return {key: setting for key, setting in settings.items() if key != "steps" or "epochs" not in settings}


def _lines(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """One override per key of a section."""
    for target, value in values.items():
        inside = {f"{target}.{key}": setting for key, setting in value.items()} if isinstance(value, Mapping) else {}
        yield from (inside or {target: value}).items()


def _target(recipe: Tree, key: str) -> str:
    """The new key of a moved one; without people, the label deadline becomes that of the answers."""
    if key == "feedback.model":
        return "judge.model"
    asks = at(recipe, ("feedback", "kind")) in ("people", "mixed")
    return MOVED[key] if asks or key != "feedback.deadline_s" else "rollout.deadline_s"


def fixed_otherwise(recipe: Tree) -> str | None:
    """The setting that an earlier run had at another value than today's fixed one; None: there is none."""
    for keys in former_keys(recipe):
        key, value = ".".join(keys), at(recipe, keys)
        if key in FIXED and not isinstance(FIXED[key], str) and value != FIXED[key]:
            return f"{key} is {flow(value)} there and fixed at {flow(FIXED[key])} here"
    return None


def _has(recipe: Any, keys: tuple[str, ...]) -> bool:
    section = at(recipe, keys[:-1])
    return isinstance(section, Mapping) and keys[-1] in section


def _without(tree: Tree, keys: tuple[str, ...]) -> dict[str, Any]:
    if len(keys) == 1:
        return {key: value for key, value in tree.items() if key != keys[0]}
    return {**tree, keys[0]: _without(tree[keys[0]], keys[1:])}


def replaced(tree: Tree, keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The tree with a value at a key."""
    below = tree.get(keys[0])
    if len(keys) == 1:
        return {**tree, keys[0]: value}
    return {**tree, keys[0]: replaced(below if isinstance(below, Mapping) else {}, keys[1:], value)}
