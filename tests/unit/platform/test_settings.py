"""Settings are defined once: a section of the recipe is passed on, or extended, and never copied field by field."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import pkgutil
from typing import Any

import pytest
from pydantic import BaseModel

import pddpo_ray

ENDINGS = ("Settings", "Config", "Plan", "Spec", "Feedback", "Rollout", "Args")
NEEDS_RAY = ("actors.engine_group", "actors.trainer_group", "deploy.serving.settings")
MOST_IN_COMMON = 4


def own_defaults(kind: Any) -> dict[str, str]:
    """Fields that the class itself declares, with their defaults in words; what it inherits is not its own."""
    declared = inspect.get_annotations(kind)
    if issubclass(kind, BaseModel):
        given = {
            name: field.get_default(call_default_factory=True, validated_data={})
            for name, field in kind.model_fields.items()
            if not field.is_required()
        }
    else:
        given = {
            field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            for field in dataclasses.fields(kind)
            if (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        }
    return {name: repr(value) for name, value in given.items() if name in declared}


def settings_classes() -> list[type]:
    """Classes of the library and of the layers above it that are named like settings."""
    names = [module.name for module in pkgutil.walk_packages(pddpo_ray.__path__, "pddpo_ray.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__") and _light(name)]
    modules += [importlib.import_module(name) for name in NEEDS_RAY]
    found: dict[str, Any] = {}
    for module in modules:
        for name, kind in inspect.getmembers(module, inspect.isclass):
            settings = dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel)
            if settings and kind.__module__ == module.__name__ and name.endswith(ENDINGS):
                found[f"{module.__name__}.{name}"] = kind
    return list(found.values())


def _light(name: str) -> bool:
    """Migrations of the journal run when they are imported, and vLLM's own classes need vLLM."""
    return ".migrations" not in name and name != "pddpo_ray.rollout.vllm_native"


def test_no_two_settings_classes_say_the_same() -> None:
    pytest.importorskip("ray")
    kinds = settings_classes()
    names = {kind.__name__ for kind in kinds}
    assert {"FitConfig", "FitSettings", "VllmSettings", "ScratchSpec", "JudgeFeedback", "TrainerSettings"} <= names
    twice = {}
    for one, other in itertools.combinations(kinds, 2):
        common = own_defaults(one).items() & own_defaults(other).items()
        if len(common) > MOST_IN_COMMON:
            twice[one.__name__, other.__name__] = sorted(name for name, _ in common)
    assert twice == {}


def test_what_is_inherited_is_not_counted_as_said_twice() -> None:
    @dataclasses.dataclass
    class Base:
        one: int = 1
        two: float = 2.0

    @dataclasses.dataclass
    class Further(Base):
        three: list[int] = dataclasses.field(default_factory=list)
        two: float = 3.0

    assert own_defaults(Base) == {"one": "1", "two": "2.0"}
    assert own_defaults(Further) == {"three": "[]", "two": "3.0"}
