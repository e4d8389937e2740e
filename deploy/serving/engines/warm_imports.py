"""What an engine's process imports, imported in the process that it is forked from (warm_engines.py)."""

import ray._private.workers.default_worker  # noqa: F401
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker  # noqa: F401

import pddpo_ray.rollout.vllm_worker  # noqa: F401
from pddpo_ray.rollout.vllm_start import without_compiling

without_compiling()
