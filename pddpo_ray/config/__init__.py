"""The configuration: a frozen tree (`tree`), how recipes and overrides become one (`loading`)."""

from pddpo_ray.config.loading import load, recipe_names, to_yaml
from pddpo_ray.config.tree import Config

__all__ = ["Config", "load", "recipe_names", "to_yaml"]
