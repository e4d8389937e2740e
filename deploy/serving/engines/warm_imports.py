"""What an engine's process imports, imported in the process that it is forked from (warm_engines.py)."""

import ray._private.workers.default_worker  # noqa: F401

from pddpo_ray.rollout.vllm_internals import import_engine
from pddpo_ray.rollout.vllm_start import without_compiling

import_engine()
without_compiling()
