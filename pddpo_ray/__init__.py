"""Align a language model under limits you state, and release it only with a certificate that they hold.

This package holds everything with a formula, a record or a rule. It imports without Ray, vLLM and DeepSpeed; the Ray
shell is `actors`, and what the outside meets is `deploy`.

    pddpo_ray.upper_bound(values, limit, level)        upper bound of a mean, valid however often it is looked at
    pddpo_ray.first_certified(values, limit, level)    how many values it took to certify the limit
    pddpo_ray.check_limits(limits, rows)               rows of answers against limits, as `pddpo limits check` does

The base install brings what these need. Runs want an extra: in a checkout `pip install '.[train]'`, or
`[cpu]` or `[gpu]` for everything; from there on

    pddpo_ray.load_recipe(name, overrides, rows=...)   a shipped recipe or a file, checked; data may be rows in memory
    pddpo_ray.run(recipe, folder)                      a whole run in this process -> its result
    pddpo_ray.evaluate_models(models, questions, out)  their answers to the same questions, scored and compared
    pddpo_ray.certify(folder, policy)                  draws for one of its policies until its limits are certified
    pddpo_ray.load_policy(name)                        RUN@VERSION, a folder or a hub name -> model and tokenizer
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pddpo_ray.version import __version__ as __version__

__all__ = [
    "certify", "check_limits", "evaluate_models", "first_certified", "load_policy", "load_recipe", "run", "upper_bound",
]  # fmt: skip

if TYPE_CHECKING:
    from pddpo_ray.certificates.release import certify_folder as certify
    from pddpo_ray.driver.recipe_of_rows import load_recipe
    from pddpo_ray.driver.run import run_recipe as run
    from pddpo_ray.evaluate.checkpoint_loading import load_checkpoint as load_policy
    from pddpo_ray.evaluate.from_python import evaluate_models
    from pddpo_ray.scoring.sources.opening import check_limits
    from pddpo_ray.theory.certificates.certificate import first_certified, upper_bound

PLACES = {
    "certify": ("pddpo_ray.certificates.release", "certify_folder"),
    "check_limits": ("pddpo_ray.scoring.sources.opening", "check_limits"),
    "evaluate_models": ("pddpo_ray.evaluate.from_python", "evaluate_models"),
    "first_certified": ("pddpo_ray.theory.certificates.certificate", "first_certified"),
    "load_policy": ("pddpo_ray.evaluate.checkpoint_loading", "load_checkpoint"),
    "load_recipe": ("pddpo_ray.driver.recipe_of_rows", "load_recipe"),
    "run": ("pddpo_ray.driver.run", "run_recipe"),
    "upper_bound": ("pddpo_ray.theory.certificates.certificate", "upper_bound"),
}
"""Where the public names are; each is loaded when it is used, so that `pddpo --help` waits for none of them."""


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = PLACES[name]
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        from pddpo_ray.errors import missing_extra

        advice = missing_extra(error.name)
        if advice is None:
            raise
        raise ImportError(f"pddpo_ray.{name}: {advice}", name=error.name) from error
