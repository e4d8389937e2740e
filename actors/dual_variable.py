"""The dual variable: one named actor owns the multipliers.

Everybody who wants to know the price of the limit asks it (`pddpo/<run>/dual` in the run's namespace): the pages, the
report, a served endpoint. It keeps no file: the journal has every step, and the driver restores the actor from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError

from actors.calls import wait_for, wait_for_actor
from actors.placement import beside_driver
from pddpo_ray.errors import RunError
from pddpo_ray.loop.dual_step import LocalDual
from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.dual import DualState, DualStep

Estimates = tuple[tuple[int, CostEstimate], ...]


class UnrestoredError(RunError):
    """The process was started again and nobody has told it the steps yet."""


class DualVariableActor:
    """`LocalDual` behind a name. A new process refuses to answer before `restore`, knowing the first values only."""

    def __init__(self, state: DualState, warmup_rounds: int) -> None:
        self._start = (state, warmup_rounds)
        self._restored: LocalDual | None = None

    def ready(self) -> bool:
        return True

    def restore(self, estimates: Estimates) -> None:
        """Begin anew and repeat the journalled steps: restoring twice is restoring once."""
        state, warmup_rounds = self._start
        owner = LocalDual(state, warmup_rounds=warmup_rounds)
        owner.restore(estimates)
        self._restored = owner

    def multipliers(self, round_: int) -> dict[str, float]:
        return dict(self._owner.multipliers(round_))

    def ascend(self, round_: int, estimate: CostEstimate) -> DualStep:
        return self._owner.ascend(round_, estimate)

    @property
    def _owner(self) -> LocalDual:
        if self._restored is None:
            raise UnrestoredError("the dual variable was started again and waits for its run to tell it the steps")
        return self._restored


class DualVariableHandle:
    """Satisfies `pddpo_ray.loop.dual_step.DualOwner`.

    A lost actor is started again and gets every step that it had taken, from this handle, before the next call.
    """

    def __init__(self, name: str, state: DualState, *, warmup_rounds: int = 0, deadline_s: float = 60.0) -> None:
        self.name = name
        self._deadline_s = deadline_s
        self._taken: Estimates = ()
        self._actor = (
            ray.remote(DualVariableActor)
            .options(num_cpus=0, name=name, max_restarts=-1, max_task_retries=0, scheduling_strategy=beside_driver())
            .remote(state, warmup_rounds)
        )

    def restore(self, estimates: Iterable[tuple[int, CostEstimate]]) -> None:
        self._taken = tuple(estimates)
        self._call("restore", self._taken)

    def multipliers(self, round_: int) -> Mapping[str, float]:
        values: dict[str, float] = self._call("multipliers", round_)
        return values

    def ascend(self, round_: int, estimate: CostEstimate) -> DualStep:
        step: DualStep = self._call("ascend", round_, estimate)
        known = {(number, taken.constraint) for number, taken in self._taken}
        if (round_, estimate.constraint) not in known:
            self._taken = (*self._taken, (round_, estimate))
        return step

    def close(self) -> None:
        ray.kill(self._actor)

    def _call(self, method: str, *arguments: Any) -> Any:
        forgot = False
        for _ in range(4):
            try:
                if forgot:
                    self._ask("restore", self._taken)
                return self._ask(method, *arguments)
            except UnrestoredError:  # lost and started again between two calls
                forgot = True
            except RayActorError:
                forgot = True
                reference = self._actor.ready.options(max_task_retries=-1).remote()
                wait_for_actor(reference, deadline_s=self._deadline_s, who=f"dual variable {self.name}")
        raise RunError(f"dual variable {self.name} was lost four times during one call")

    def _ask(self, method: str, *arguments: Any) -> Any:
        reference = getattr(self._actor, method).remote(*arguments)
        return wait_for(reference, deadline_s=self._deadline_s, who=f"dual variable {self.name}", what=method)
