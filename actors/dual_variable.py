"""The dual variable: one named actor owns the multipliers of a run.

All that work on a round ask it (`pddpo/<run>/dual` in the run's namespace): the method for the weight of the cost fit,
the explorer for the weight of the cost bonus; only a step that it takes itself changes a multiplier. It keeps no file:
the journal has every step, and the driver restores the actor from there. What report, metrics and a served endpoint say
of finished rounds they read in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import ray
from ray.exceptions import RayActorError

from actors.calls import Answerer, AnsweringActor, Handle, wait_for
from actors.placement import beside_driver
from pddpo_ray.errors import RunError
from pddpo_ray.parts.dual_step import Estimates, JointStep, LocalDual
from pddpo_ray.theory.multipliers.dual import DualState


class UnrestoredError(RunError):
    """The process was started again and nobody has told it the steps yet."""


class DualVariableActor(AnsweringActor):
    """`LocalDual` behind a name. A new process refuses to answer before `restore`, knowing the first values only."""

    def __init__(self, state: DualState) -> None:
        super().__init__()
        self._start = state
        self._dual: LocalDual | None = None

    def restore(self, steps: tuple[Estimates, ...]) -> None:
        """Starts afresh and repeats the journalled steps; a second call changes nothing."""
        owner = LocalDual(self._start)
        owner.restore(steps)
        self._dual = owner

    def multipliers(self, round_: int) -> dict[str, float]:
        return dict(self._owner.multipliers(round_))

    def step(self, estimates: Estimates) -> JointStep:
        return self._owner.step(estimates)

    @property
    def _owner(self) -> LocalDual:
        if self._dual is None:
            raise UnrestoredError("the dual variable was started again and waits for its run to tell it the steps")
        return self._dual


class DualVariableHandle(Handle[DualVariableActor]):
    """Satisfies `pddpo_ray.parts.dual_step.DualOwner`.

    A lost actor is started again and gets every step that it had taken, from this handle, before the next call.
    """

    def __init__(self, name: str, state: DualState, *, deadline_s: float = 60.0) -> None:
        self._estimates: tuple[Estimates, ...] = ()
        self._answerer = Answerer(
            ray.remote(DualVariableActor)
            .options(num_cpus=0, name=name, max_restarts=-1, max_task_retries=0, scheduling_strategy=beside_driver())
            .remote(state),
            who=f"dual variable {name}",
            restarts=3,
            deadline_s=deadline_s,
            start_deadline_s=deadline_s,
            recover=self._recover,
            lost=(RayActorError, UnrestoredError),
        )

    def restore(self, steps: Iterable[Estimates]) -> None:
        self._estimates = tuple(steps)
        self._answerer.ask("the steps so far", DualVariableActor.restore, self._estimates)

    def multipliers(self, round_: int) -> Mapping[str, float]:
        return self._answerer.ask("its multipliers", DualVariableActor.multipliers, round_)

    def step(self, estimates: Estimates) -> JointStep:
        joint_step = self._answerer.ask("a step", DualVariableActor.step, estimates)
        if estimates.round not in {previous.round for previous in self._estimates}:
            self._estimates = (*self._estimates, estimates)
        return joint_step

    def _recover(self) -> None:
        answerer = self._answerer
        answerer.wait_restarted()
        reference = answerer.begin(DualVariableActor.restore, self._estimates)
        wait_for(reference, deadline_s=answerer.deadline_s, actor_name=answerer.who, task="the steps so far")
