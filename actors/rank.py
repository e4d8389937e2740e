"""One rank of the trainer group: it makes its backend, then takes and answers commands until its group ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import ray

from actors.mailbox import STOP, Outcome, Worker
from actors.weights import SendCommand, WeightSender
from pddpo_ray.contracts import FitCommand, FitResult, TrainerBackend, Update, perform
from pddpo_ray.errors import PddpoError, one_line
from pddpo_ray.records import Array, PolicyVersion, Response
from pddpo_ray.training.device import release_cached_memory
from pddpo_ray.training.progress import PROGRESS

POLL_S = 5.0
PROGRESS_S = 0.5
MakeBackend = Callable[[int, int], TrainerBackend]
"""(rank, ranks) -> the engine-bearing backend of that rank; runs in the rank's process, so it must be picklable."""


class Rank:
    """What a rank can be told to do; every rank of a group does the same."""

    def __init__(self, backend: TrainerBackend, sender: WeightSender) -> None:
        self._backend = backend
        self._sender = sender

    def execute(self, command: FitCommand) -> FitResult:
        return self._backend.execute(command)

    def perform(self, update: Update) -> Any:
        return perform(self._backend, update)

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        return self._backend.log_probs(policy, responses)

    def features(self, responses: Sequence[Response]) -> Array:
        return self._backend.features(responses)

    def send(self, command: SendCommand) -> int:
        return self._sender.send(command)


def rank_loop(config: dict[str, Any]) -> None:
    """What every rank runs from the start of its group to its end."""
    import torch
    from ray import train

    torch.set_num_threads(config["threads"])
    context = train.get_context()
    rank, ranks = context.get_world_rank(), context.get_world_size()
    backend: TrainerBackend = config["make_backend"](rank, ranks)
    mailbox = config["mailbox"]
    worker = Worker(rank, os.getpid(), ray.util.get_node_ip_address())
    ended = threading.Event()
    if worker.rank == 0:
        PROGRESS.listener = lambda line: mailbox.say.remote(line)
    threading.Thread(target=_report_progress, args=(mailbox, ended), daemon=True, name="progress").start()
    try:
        ray.get(mailbox.hello.remote(worker))
        _serve(mailbox, worker, Rank(backend, WeightSender(rank)))
    except ray.exceptions.RayActorError:
        # Without its mailbox nobody wants this group any more; an error here would only start it again.
        return
    finally:
        ended.set()
        backend.close()


def _report_progress(mailbox: Any, ended: threading.Event) -> None:
    """Tells the mailbox when this process got further, at most every `PROGRESS_S`."""
    steps = PROGRESS.steps
    while not ended.wait(PROGRESS_S):
        if PROGRESS.steps != steps:
            steps = PROGRESS.steps
            mailbox.advance.remote()


def _serve(mailbox: Any, worker: Worker, rank: Rank) -> None:
    """Take and answer commands until the mailbox says stop."""
    while True:
        command = ray.get(mailbox.next.remote(worker, POLL_S))
        if command is None:
            continue
        number, payload = command
        if number == STOP:
            return
        do: Callable[[Rank], Any] = ray.get(payload[0])
        ray.get(mailbox.answer.remote(number, worker, _perform(do, rank, first=worker.rank == 0)))


def _perform(do: Callable[[Rank], Any], rank: Rank, *, first: bool) -> Outcome:
    """Run one command. An expected error is an answer; anything else ends the group and is tried again by Train."""
    try:
        value = do(rank)
    except (PddpoError, ArithmeticError, ValueError, OSError) as error:
        return Outcome(error=type(error).__name__, message=one_line(error))
    finally:
        release_cached_memory()
    return Outcome(value if first else None)
