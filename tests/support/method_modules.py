"""The module of every method, by its name in a recipe."""

from __future__ import annotations

from importlib import import_module

from pddpo_ray.config.sections.method import Method
from pddpo_ray.registry import load, names

METHODS = {name: import_module(load("methods", name, Method).code.partition(":")[0]) for name in names("methods")}
