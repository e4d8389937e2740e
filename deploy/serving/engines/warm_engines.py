"""A process that has imported what vLLM needs and from which vLLM's engine processes are forked.

Imports are most of a start: 10 CPU seconds, once in the replica and once more in the process that vLLM spawns from it.
The warm process imports while the replica does, and an engine that dies is followed by one that imports nothing. It has
no thread of its own and no GPU in use, so forking it is safe where forking a replica is not; it ends with its replica.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

from pddpo_ray.rollout.vllm_internals import start_engines_from
from pddpo_ray.rollout.vllm_start import prepare_process

IMPORTED = ["deploy.serving.engines.warm_imports"]


def warm_up(threads: int) -> None:
    """Starts the warm process of this process; engines that are started here are forked from it.

    threads: of each engine. The warm process keeps the environment of this moment.
    """
    prepare_process(threads)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    forkserver.ensure_running()
    start_engines_from(context)
