"""The multipliers of limits inside another trainer on Ray: one named actor owns them for all its reward workers.

    limits = SharedLimits("limits.yaml", journal="out/limits.jsonl", answers_a_step=1024)
    limits.score(asked_for(["How?"], ["Soak it first."], rewards=[0.7]))

The first process starts the actor, beside itself; it outlives that process and ends with the trainer's Ray session,
or with `close`. A lost actor is restarted by Ray and continues where its files say, in the middle of a step; a new
one, of a restarted trainer, continues at the beginning of that step.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

import ray

from actors.calls import Answerer, AnsweringActor, Handle
from actors.placement import beside_driver
from pddpo_ray.errors import PddpoError, UserError
from pddpo_ray.integrations.answer_scores import AnswerScores, Asked, Scored
from pddpo_ray.integrations.schedule import NO_SCHEDULE, Schedule
from pddpo_ray.limits.sources import fingerprint

WAITING = 64
"""Requests that wait inside the actor for one measurement; further ones wait in Ray."""


@dataclass(frozen=True)
class LimitSettings:
    """Settings of an actor; workers that share it must give equal ones."""

    limits: Mapping[str, Any] | Path
    content: str
    """Hash of the limits' content: a file may have been edited since the actor read it."""
    journal: Path
    answers_a_step: int
    schedule: Schedule


class LimitControllerActor(AnsweringActor):
    """`AnswerScores` behind a name. While answers are measured the next ones wait, and are then measured together."""

    def __init__(self, settings: LimitSettings) -> None:
        super().__init__()
        self._settings = settings
        self._is_restart = ray.get_runtime_context().was_current_actor_reconstructed
        self._owner: AnswerScores | None = None
        self._waiting: SimpleQueue[tuple[Asked, Future[Scored]]] = SimpleQueue()
        self._measuring = Lock()

    def begin(self, settings: LimitSettings) -> None:
        """Opens the limits' sources. Raises UserError where they are wrong, or where `settings` are not the actor's
        own."""
        if settings != self._settings:
            raise UserError(
                f"the limits of {self._settings.journal} were begun with another file, another text of it, another"
                " schedule or answers_a_step; make them equal in all workers, or name another journal"
            )
        with self._measuring:
            self._open_limits()

    def has_begun(self) -> bool:
        return self._owner is not None

    def score(self, request: Asked) -> Scored:
        reply: Future[Scored] = Future()
        self._waiting.put((request, reply))
        with self._measuring:
            if not reply.done():
                self._answer_waiting()
        return reply.result()

    def multipliers(self) -> dict[str, float]:
        with self._measuring:
            return self._open_limits().multipliers

    def _answer_waiting(self) -> None:
        requests = [self._waiting.get() for _ in range(self._waiting.qsize())]
        try:
            results = self._open_limits().score_all([batch for batch, _ in requests])
        except Exception as error:  # whoever waits is told; the actor continues
            for _, reply in requests:
                reply.set_exception(error)
            return
        for (_, reply), result in zip(requests, results, strict=True):
            reply.set_result(result)

    def _open_limits(self) -> AnswerScores:
        """Opens the limits at first use, so that the caller gets their UserError and not a failed constructor."""
        if self._owner is None:
            settings = self._settings
            self._owner = AnswerScores(
                settings.limits,
                journal=settings.journal,
                answers_a_step=settings.answers_a_step,
                schedule=settings.schedule,
            )
            if not self._is_restart:
                self._owner.forget_unfinished()
        return self._owner


class SharedLimits(Handle[LimitControllerActor]):
    """The limits of a trainer, in any of its processes; satisfies `pddpo_ray.integrations.answer_scores.Scorer`.

    Processes of one Ray job that name the same journal share its actor. Raises UserError for what is wrong with limits
    or journal, and RunError that names the actor when its deadline passes or its process was lost too often.
    """

    def __init__(
        self,
        limits: Mapping[str, Any] | str | Path,
        *,
        journal: str | Path,
        answers_a_step: int,
        schedule: Schedule = NO_SCHEDULE,
        deadline_s: float = 600.0,
        start_deadline_s: float = 300.0,
        restarts: int = 3,
    ) -> None:
        """Starts the actor or finds it. `limits`, `journal` and `schedule` as for `AnswerScores`; `answers_a_step` are
        all answers of a step of the trainer: prompts times answers to each."""
        if not ray.is_initialized():
            raise UserError(
                "Ray does not run in this process; SharedLimits belongs in the file that verl or OpenRLHF loads in"
                " its workers"
            )
        settings = _settings(limits, Path(journal).resolve(), answers_a_step, schedule)
        name = f"pddpo/limits/{settings.journal}"
        actor = (
            ray.remote(LimitControllerActor)
            .options(
                name=name,
                get_if_exists=True,
                # or it would end with the worker that happened to come first
                lifetime="detached",
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=WAITING,
                scheduling_strategy=beside_driver(),
            )
            .remote(settings)
        )
        self._answerer = Answerer(actor, f"limit controller {name}", restarts, deadline_s, start_deadline_s)
        self.wait_ready()
        try:
            self._answerer.ask("the opening of its limits", LimitControllerActor.begin, settings)
        except PddpoError:
            # one that never opened its limits would refuse them after they were corrected
            if not self._answerer.ask("whether it has begun", LimitControllerActor.has_begun):
                self.close()
            raise

    def score(self, request: Asked) -> Scored:
        return self._answerer.ask(f"scores of {len(request.answers)} answers", LimitControllerActor.score, request)

    def multipliers(self) -> dict[str, float]:
        return self._answerer.ask("its multipliers", LimitControllerActor.multipliers)


def _settings(
    limits: Mapping[str, Any] | str | Path, journal: Path, answers_a_step: int, schedule: Schedule
) -> LimitSettings:
    """Paths are whole: the actor may have another working folder. Raises UserError for a file that is not there."""
    if isinstance(limits, Mapping):
        return LimitSettings(limits, fingerprint(repr(limits)), journal, answers_a_step, schedule)
    path = Path(limits).resolve()
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file with `limits:` in it")
    return LimitSettings(path, fingerprint(path.read_bytes()), journal, answers_a_step, schedule)
