"""Waiting for actors: every wait has a deadline and says who it waits for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from pddpo_ray.errors import PddpoError, RunError, one_line

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


def wait_for(reference: Any, *, deadline_s: float, actor_name: str, task: str) -> Any:
    """Value of a remote call. Raises RunError after `deadline_s`, and an actor's own error as it was raised there.

    A lost actor raises `ray.exceptions.RayActorError`, for callers that know how to replace it.
    """
    try:
        return ray.get(reference, timeout=deadline_s)
    except GetTimeoutError:
        raise RunError(f"{actor_name} did not finish {task} within {deadline_s:.0f} s; is its process alive?") from None
    except RayTaskError as error:
        if isinstance(error.cause, PddpoError):
            raise error.cause from None
        raise


def wait_for_actor(reference: Any, *, deadline_s: float, actor_name: str) -> Any:
    """`wait_for` for an actor's first call, which also waits for resources and imports.

    Raises RunError with the reason where the actor's constructor failed.
    """
    began = time.monotonic()
    try:
        return wait_for(reference, deadline_s=deadline_s, actor_name=actor_name, task="its start")
    except RayActorError as error:
        seconds = time.monotonic() - began
        raise RunError(
            f"{actor_name} failed to start after {seconds:.0f} s: {one_line(error)}; "
            "all of it is in Ray's session folder (`ray logs`)"
        ) from error


class AnsweringActor:
    """Base of the actors that an `Answerer` calls."""

    def __init__(self) -> None:
        # Ray leaves all GPUs visible to an actor that reserved none.
        if not ray.get_gpu_ids():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def ready(self) -> bool:
        return True


@dataclass
class Answerer(Generic[A]):
    """Calls methods of an actor of class A, and repeats a call whose process was lost.

    answerer.ask("3 comparisons", FeedbackActor.compare, pairs, seed)

    The actor's answers must follow from the arguments. One call may lose it `restarts` times; `who` names it in
    messages. `recover` prepares a lost actor for the repeated call; without it Ray restarts the actor, any number of
    times, and the call waits. `lost` are the errors that mean a loss.
    """

    actor: Any
    who: str
    restarts: int
    deadline_s: float
    start_deadline_s: float
    recover: Callable[[], None] | None = None
    lost: tuple[type[Exception], ...] = (RayActorError,)

    def wait_ready(self) -> None:
        wait_for_actor(self.actor.ready.remote(), deadline_s=self.start_deadline_s, actor_name=self.who)

    def wait_restarted(self) -> None:
        """Waits until a lost actor has started again; right after the loss it is unavailable for a moment."""
        reference = self.actor.ready.options(max_task_retries=-1).remote()
        wait_for_actor(reference, deadline_s=self.start_deadline_s, actor_name=self.who)

    def begin(self, method: Callable[Concatenate[A, P], R], *arguments: P.args, **keywords: P.kwargs) -> Any:
        """Starts a call. -> the reference that `collect` takes"""
        return getattr(self.actor, method.__name__).remote(*arguments, **keywords)

    def ask(self, task: str, method: Callable[Concatenate[A, P], R], *arguments: P.args, **keywords: P.kwargs) -> R:
        """The answer. Raises RunError when the actor was lost too often, or as `wait_for` does."""
        return self.collect(task, None, method, *arguments, **keywords)

    def collect(
        self, task: str, begun: Any, method: Callable[Concatenate[A, P], R], *arguments: P.args, **keywords: P.kwargs
    ) -> R:
        """The answer to a question that `begin` has asked already."""
        loss: Exception | None = None
        for _ in range(self.restarts + 1):
            try:
                if loss is not None:
                    (self.recover or self.wait_restarted)()
                reference, begun = self.begin(method, *arguments, **keywords) if begun is None else begun, None
                answer: R = wait_for(reference, deadline_s=self.deadline_s, actor_name=self.who, task=task)
                return answer
            except self.lost as error:
                loss = error
        times = f"was lost {self.restarts + 1} times during {task}"
        raise RunError(f"{self.who} {times}; its log is in Ray's session folder (`ray logs`)") from loss

    def close(self) -> None:
        ray.kill(self.actor)


class Handle(Generic[A]):
    """Base of the driver's handles of actors; `__init__` of a subclass starts one and sets `_answerer`."""

    _answerer: Answerer[A]

    def wait_ready(self) -> None:
        """Waits for resources, imports and the actor's start."""
        self._answerer.wait_ready()

    def close(self) -> None:
        self._answerer.close()
