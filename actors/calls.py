"""Waiting for actors: every wait has a deadline and says who it waits for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from pddpo_ray.errors import PddpoError, RunError


def wait_for(reference: Any, *, deadline_s: float, who: str, what: str) -> Any:
    """Value of a remote call. Raises RunError after `deadline_s`, and an actor's own error as it was raised there.

    A lost actor raises `ray.exceptions.RayActorError`, for callers that know how to replace it.
    """
    try:
        return ray.get(reference, timeout=deadline_s)
    except GetTimeoutError:
        raise RunError(f"{who} did not finish {what} within {deadline_s:.0f} s; is its process alive?") from None
    except RayActorError:
        raise
    except RayTaskError as error:
        if isinstance(error.cause, PddpoError):
            raise error.cause from None
        raise


def wait_for_actor(reference: Any, *, deadline_s: float, who: str) -> Any:
    """The same for an actor's first call, which also waits for resources and imports.

    An actor whose constructor failed says so with the reason instead of being waited for.
    """
    began = time.monotonic()
    try:
        return wait_for(reference, deadline_s=deadline_s, who=who, what="its start")
    except RayActorError as error:
        seconds = time.monotonic() - began
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else type(error).__name__
        raise RunError(f"{who} failed to start after {seconds:.0f} s: {reason}") from error


@dataclass(frozen=True)
class Answerer:
    """An actor whose answers follow from the question: whenever its process is lost it is asked once more.

    It has a method `ready`, Ray starts it again without end, and one question may lose it `restarts` times; `who` names
    it in messages.
    """

    actor: Any
    who: str
    restarts: int
    deadline_s: float
    start_deadline_s: float

    def wait_ready(self) -> None:
        wait_for_actor(self.actor.ready.remote(), deadline_s=self.start_deadline_s, who=self.who)

    def begin(self, method: str, *arguments: Any) -> Any:
        """Asks without waiting. -> what `ask` takes as `begun`"""
        return getattr(self.actor, method).remote(*arguments)

    def ask(self, method: str, *arguments: Any, what: str, begun: Any = None) -> Any:
        """The answer to this question, which `begin` may have asked before.

        Raises RunError when the actor was lost too often, or as `wait_for` does.
        """
        attempts = self.restarts + 1
        for _ in range(attempts):
            try:
                reference, begun = self.begin(method, *arguments) if begun is None else begun, None
                return wait_for(reference, deadline_s=self.deadline_s, who=self.who, what=what)
            except RayActorError as error:
                lost = error
                # Right after a loss the actor is unavailable for a moment; its own next start answers, or says why not.
                restarted = self.actor.ready.options(max_task_retries=-1).remote()
                wait_for_actor(restarted, deadline_s=self.start_deadline_s, who=self.who)
        raise RunError(f"{self.who} was lost {attempts} times during {what}") from lost

    def close(self) -> None:
        ray.kill(self.actor)
