"""The trainer as a Ray Train worker group that lives for the whole run.

    driver thread: TorchTrainer.fit()  ->  Train's controller  ->  rank 0 ... n-1, each in `actors.rank`
    driver: execute(command)  ->  mailbox actor  <-  ranks: next, compute, answer

Ray Train starts the ranks, forms their process group, and starts all of them again when one is lost (FailureConfig).
One group and one name per run: a second `fit` under the same name would silently resume the first. The models stay in
the ranks between commands; the command round trip is some milliseconds. Which fits are finished is the journal's
business: a new group simply gets the unfinished command again, and commands give the same result every time.

A trainer that shares its GPUs with the engines takes turns with them. Engines wake when they are used
(`actors.engine_group.RolloutHandle`); before the trainer works, all of them sleep. The one called has its turn:

    fit                 engines sleep, trainer works
    deliver, sample     the engine wakes; the trainer keeps weights and optimiser, nothing else
    verify              trainer scores the canaries (engines sleep), the engine scores them: what woke is verified
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import ray

from actors.mailbox import Mailbox, Outcome, Worker
from actors.placement import beside_driver, release_places_of_lost_groups, release_superseded_places
from actors.rank import POLL_S, MakeBackend, Rank, rank_loop
from actors.weights import SendCommand
from pddpo_ray.contracts import FitCommand, FitResult, TrainerBackend, Update, perform
from pddpo_ray.errors import RunError, one_line
from pddpo_ray.records import Array, PolicyVersion, Response
from pddpo_ray.training.progress import PROGRESS

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class TrainerSettings:
    """Size of the group, and how long it is waited for: `deadline_s` without any progress."""

    workers: int = 1
    threads: int = 1
    gpus: float = 0.0
    """Share of a GPU that each rank reserves; 0: the group computes on CPUs."""
    backend: str = "gloo"
    """What the ranks' process group speaks."""
    placement: str = "PACK"
    max_failures: int = 3
    start_deadline_s: float = 300.0
    deadline_s: float = 1800.0
    lack: Callable[[], str | None] = lambda: None
    """Says what the cluster lacks for the run, once it lacks something."""


class TrainerGroup:
    """Many ranks that look like one backend; satisfies `pddpo_ray.contracts.TrainerBackend`.

    Calls return when all ranks are done. Raises RunError when a deadline passes (naming the ranks it waited for), when
    the group failed more than `max_failures` times, or with the message of an expected error inside a rank.
    """

    def __init__(self, make_backend: MakeBackend, *, name: str, storage: Path, settings: TrainerSettings) -> None:
        self._make_backend = make_backend
        self._settings = settings
        self._name = f"{name}-{uuid.uuid4().hex[:8]}"
        self._storage = Path(storage).absolute()
        self._number = 0
        self._lost_groups = 0
        self._short_since: float | None = None
        self._one_at_a_time = threading.Lock()
        self._early_fit: tuple[FitCommand, Future[FitResult]] | None = None
        self._is_closed = False
        self._start_group()

    # --- TrainerBackend -----------------------------------------------------------------------------------------

    def execute(self, command: FitCommand) -> FitResult:
        begun, self._early_fit = self._early_fit, None
        if begun is not None and begun[0] == command:
            return begun[1].result()
        return self._execute(command)

    def begin(self, command: FitCommand) -> None:
        """Starts a fit; `execute` with an equal command collects it. Other calls wait until it is done."""
        fit: Future[FitResult] = Future()

        def run() -> None:
            try:
                fit.set_result(self._execute(command))
            except BaseException as error:
                fit.set_exception(error)

        self._early_fit = command, fit
        threading.Thread(target=run, daemon=True, name="fit-begun").start()

    def perform(self, update: Update) -> Any:
        result = self._call(f"update {update.result}", Rank.perform, update)
        return replace(result, workers=tuple(worker.pid for worker in self.workers()))

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        return self._call(f"log-probs under {policy.name}", Rank.log_probs, policy, tuple(responses))

    def features(self, responses: Sequence[Response]) -> Array:
        return self._call("features of the reference", Rank.features, tuple(responses))

    def send(self, command: SendCommand) -> int:
        """Every rank takes part in sending a version to an engine. -> number of tensors"""
        return self._call(f"the delivery of {command.policy.name}", Rank.send, command)

    def close(self, patience_s: float = 60.0) -> None:
        """End the loop of every rank, which ends the group; what is left after `patience_s` ends with the driver."""
        self._is_closed = True
        try:
            ray.get(self._mailbox.stop.remote(), timeout=patience_s)
        except (ray.exceptions.RayError, TimeoutError):
            return
        self._thread.join(timeout=patience_s)
        ray.kill(self._mailbox)

    # --- beyond the protocol ------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until every rank has its backend. `__init__` only starts them, so other parts can start meanwhile."""
        deadline = time.monotonic() + self._settings.start_deadline_s
        while not ray.get(self._mailbox.ready.remote(POLL_S)):
            self._raise_if_group_ended()
            release_superseded_places()
            if time.monotonic() > deadline:
                present = [worker.rank for worker in self.workers()]
                raise RunError(
                    f"the trainer group did not start within {self._settings.start_deadline_s:.0f} s: ranks {present}"
                    f" of {self._settings.workers} are there. `ray status` shows what the cluster can give."
                )

    def workers(self) -> list[Worker]:
        """The present ranks with their process ids."""
        workers: list[Worker] = ray.get(self._mailbox.workers.remote())
        return workers

    def restarts(self) -> int:
        """How many ranks had to be started again so far."""
        return int(ray.get(self._mailbox.restarts.remote()))

    # --- inside -------------------------------------------------------------------------------------------------

    def _execute(self, command: FitCommand) -> FitResult:
        result = self._call(f"fit {command.result}", Rank.execute, command)
        return replace(result, workers=tuple(worker.pid for worker in self.workers()))

    def _start_group(self) -> None:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "180")
        # how late a start or an end is noticed; two seconds by default
        os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
        settings = self._settings
        self._failure: BaseException | None = None
        self._mailbox = (
            ray.remote(Mailbox)
            .options(
                num_cpus=0,
                name=f"{self._name}/mailbox-{self._lost_groups}",
                max_concurrency=1000,
                scheduling_strategy=beside_driver(),
            )
            .remote(settings.workers)
        )
        trainer = TorchTrainer(
            rank_loop,
            train_loop_config={
                "mailbox": self._mailbox,
                "make_backend": self._make_backend,
                "threads": settings.threads,
            },
            torch_config=TorchConfig(backend=settings.backend),
            scaling_config=ScalingConfig(
                num_workers=settings.workers,
                use_gpu=settings.gpus > 0,
                resources_per_worker={"CPU": settings.threads, **({"GPU": settings.gpus} if settings.gpus else {})},
                placement_strategy=settings.placement,
            ),
            run_config=RunConfig(
                name=f"{self._name}-{self._lost_groups}",
                storage_path=str(self._storage),
                failure_config=FailureConfig(max_failures=settings.max_failures),
            ),
        )
        self._thread = threading.Thread(target=self._fit, args=(trainer,), daemon=True, name="ray-train")
        self._thread.start()

    def _fit(self, trainer: Any) -> None:
        try:
            trainer.fit()
        except BaseException as error:
            self._failure = error

    def _call(self, task: str, method: Callable[Concatenate[Rank, P], R], *arguments: P.args, **kwargs: P.kwargs) -> R:
        """One command to all ranks, from any thread. -> the value of rank 0"""
        with self._one_at_a_time:
            value: R = self._command(task, lambda rank: method(rank, *arguments, **kwargs))
            return value

    def _command(self, task: str, do: Callable[[Rank], Any]) -> Any:
        self._number += 1
        outcome: Outcome | None = None
        submitted = overdue = False
        advances, deadline = 0, time.monotonic() + self._settings.deadline_s
        while True:
            try:
                if not submitted:
                    self.wait_ready()
                    self._submit(do)
                    submitted = True
                outcome = ray.get(self._mailbox.result.remote(self._number, POLL_S))
                for line in ray.get(self._mailbox.said.remote()):
                    PROGRESS.tell(line)
                if time.monotonic() > deadline:
                    before, advances = advances, ray.get(self._mailbox.advances.remote())
                    overdue, deadline = advances == before, time.monotonic() + self._settings.deadline_s
            except ray.exceptions.RayActorError as error:
                self._replace_group(error)
                submitted = False
            if outcome is not None:
                break
            if self._group_ended():
                self._replace_group(self._failure)
                submitted = False
            if overdue:
                raise RunError(self._overdue(task))
            release_superseded_places()
            self._raise_if_cluster_shrank(task)
        if outcome.error is not None:
            raise RunError(f"trainer, {task}: {outcome.message}")
        return outcome.value

    def _submit(self, do: Callable[[Rank], Any]) -> None:
        # Inside a list the reference itself travels: the mailbox never holds the rows.
        ray.get(self._mailbox.submit.remote(self._number, [ray.put(do)]))

    def _overdue(self, task: str) -> str:
        missing = ray.get(self._mailbox.waiting_for.remote())
        names = ", ".join(
            f"rank {worker.rank} (process {worker.pid} on {worker.node})"
            for worker in self.workers()
            if worker.rank in missing
        )
        patience = f"{self._settings.deadline_s:.0f} s"
        return f"{task} made no progress for {patience}: still waiting for {names or 'a new group'}"

    def _group_ended(self) -> bool:
        return not self._thread.is_alive()

    def _raise_if_group_ended(self) -> None:
        if self._group_ended():
            raise RunError(f"the trainer group ended: {one_line(self._failure)}") from self._failure

    def _raise_if_cluster_shrank(self, task: str) -> None:
        """A lost node may leave too little for the group; new nodes get the time that starting takes."""
        shortage = self._settings.lack()
        if shortage is None:
            self._short_since = None
            return
        if self._short_since is None:
            self._short_since = time.monotonic()
            logger.warning("the cluster became too small during %s: %s; waiting for new nodes", task, shortage)
        if time.monotonic() - self._short_since > self._settings.start_deadline_s:
            raise RunError(
                f"the cluster became too small during {task}: {shortage}. Add nodes and continue with --resume"
            )

    def _replace_group(self, failure: BaseException | None) -> None:
        """FailureConfig covers the ranks; a lost controller or mailbox is replaced together with the whole group."""
        self._failure = failure
        is_lost = isinstance(failure, ray.exceptions.RayActorError)
        if self._is_closed or not is_lost or self._lost_groups >= self._settings.max_failures:
            raise RunError(f"the trainer group ended: {one_line(failure)}") from failure
        self._lost_groups += 1
        ray.kill(self._mailbox)
        # Ranks leave when their mailbox is gone; the new group wants their places.
        deadline = time.monotonic() + self._settings.start_deadline_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(timeout=POLL_S)
            release_superseded_places()
        release_places_of_lost_groups()
        self._start_group()


class Sleeper(Protocol):
    """Something that can give its memory away."""

    def sleep(self) -> None: ...


class TrainerInTurns:
    """A trainer that sends the engines to sleep before it works; satisfies `pddpo_ray.contracts.TrainerBackend`.

    It is no `EarlyTrainer`: a fit that began early would compute while the engines sample on the same GPUs.
    """

    def __init__(self, trainer: TrainerBackend, engines: Sequence[Sleeper]) -> None:
        self._trainer = trainer
        self._engines = engines

    def execute(self, command: FitCommand) -> FitResult:
        return self._in_turn().execute(command)

    def perform(self, update: Update) -> Any:
        return perform(self._in_turn(), update)

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
