"""A suite over Ray: every unit is a task with a CPU and a process of its own, so that no engine outlives its unit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.queue import Empty, Queue

from actors.session import ray_session
from pddpo_lab.compare.runner import Row, Tell, Unit, run_unit
from pddpo_lab.compare.suite import Suite
from pddpo_ray.errors import RunError

POLL_S = 1.0


@ray.remote(num_cpus=1, max_calls=1, max_retries=1)
def _unit(suite: Suite, unit: Unit, folder: Path, lines: Any) -> list[Row]:
    return run_unit(suite, unit, folder, lines.put)


def run_over_ray(
    suite: Suite, units: Sequence[Unit], folder: Path, tell: Tell, *, jobs: int, address: str | None = None
) -> list[Row]:
    """Rows of all units' arms, `jobs` units at a time; a lost process is started once more and resumes its runs."""
    with ray_session(f"pddpo/compare/{suite.name}", address=address, cpus=None if address else jobs):
        lines = Queue(actor_options={"num_cpus": 0})
        waiting = list(units)
        running: dict[ray.ObjectRef[list[Row]], Unit] = {}
        done: dict[Unit, list[Row]] = {}
        while waiting or running:
            while waiting and len(running) < jobs:
                unit = waiting.pop(0)
                running[_unit.remote(suite, unit, folder, lines)] = unit
            ready, _ = ray.wait(list(running), timeout=POLL_S)
            _pass_on(lines, tell)
            for reference in ready:
                done[running.pop(reference)] = _rows_of(reference)
        _pass_on(lines, tell)
    return [row for unit in units for row in done[unit]]


def _rows_of(reference: Any) -> list[Row]:
    try:
        rows: list[Row] = ray.get(reference)
        return rows
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from error
    except ray.exceptions.RayError as error:
        raise RunError(f"a worker of the comparison was lost ({error}): give the command again to continue") from error


def _pass_on(lines: Any, tell: Tell) -> None:
    while True:
        try:
            tell(lines.get(block=False))
        except Empty:
            return
