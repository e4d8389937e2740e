"""Trainer and engines that take turns on the same GPUs.

Engines wake when they are used (`actors.engine_group.RolloutHandle`); before the trainer works, all of them sleep. The
order of calls needs no schedule of its own: whoever is called has its turn.

    fit                 engines sleep, trainer works
    deliver, sample     the engine wakes; the trainer keeps weights and optimiser, nothing else
    verify               trainer scores the canaries (engines sleep), the engine scores them: what woke is verified
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pddpo_ray.contracts import Array, FitCommand, FitResult, TrainerBackend
from pddpo_ray.records import PolicyVersion, Response


class Sleeper(Protocol):
    """Something that can give its memory away."""

    def sleep(self) -> None: ...


class TrainerInTurns:
    """A trainer that sends the engines to sleep before it works; satisfies `pddpo_ray.contracts.TrainerBackend`."""

    def __init__(self, trainer: TrainerBackend, engines: Sequence[Sleeper]) -> None:
        self._trainer = trainer
        self._engines = engines

    def execute(self, command: FitCommand) -> FitResult:
        return self._in_turn().execute(command)

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        return self._in_turn().log_probs(policy, responses)

    def features(self, responses: Sequence[Response]) -> Array:
        return self._in_turn().features(responses)

    def close(self) -> None:
        self._trainer.close()

    def _in_turn(self) -> TrainerBackend:
        for engine in self._engines:
            engine.sleep()
        return self._trainer
