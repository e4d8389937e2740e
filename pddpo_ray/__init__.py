"""Primal-dual DPO: align a language model online under a cost limit.

This package holds everything with a formula, a record or a rule. It imports without Ray, vLLM and DeepSpeed; the Ray
shell is `actors`, and what the outside meets is `deploy`.

    pddpo_ray.upper_bound(values, limit, level)        upper bound of a mean, valid however often it is looked at
    pddpo_ray.first_certified(values, limit, level)    how many values it took to certify the limit
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["first_certified", "upper_bound"]

if TYPE_CHECKING:
    from pddpo_ray.theory.certificate import first_certified, upper_bound

PLACES = {"upper_bound": "pddpo_ray.theory.certificate", "first_certified": "pddpo_ray.theory.certificate"}
"""Modules of the public names; loaded when one is used, so that `pddpo --help` waits for none of them."""


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PLACES[name]), name)
