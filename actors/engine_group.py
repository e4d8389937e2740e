"""Rollout engines as Ray actors, one per placement bundle, and their handles in the driver.

A handle looks like the engine. It keeps three promises over the wire: every batch names the version it must come from,
and another version is an error, never an answer; a lost process is replaced a bounded number of times; and a new
process gets the current version delivered and verified again before it samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.calls import Answerer, AnsweringActor, Handle
from pddpo_ray.contracts import Count, Draw, RolloutEngine
from pddpo_ray.errors import RunError
from pddpo_ray.parts.sampling import VerifyDelivery
from pddpo_ray.records import Array, Decoding, Delivery, PolicyVersion, Prompt
from pddpo_ray.theory.seeds import counts

MakeEngine = Callable[[], RolloutEngine]
"""Runs in the actor's process; picklable."""

Send = Callable[[PolicyVersion, Any], object]
"""(policy, the engine's actor): the trainer's ranks send the weights to it."""


@runtime_checkable
class Sleeper(Protocol):
    """An engine that can give the GPU's memory away for a while."""

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


@runtime_checkable
class Receiver(Protocol):
    """An engine that is sent its weights through vLLM's own transfer."""

    llm: Any
    """The `vllm.LLM` that takes them."""

    def expect(self, policy: PolicyVersion) -> None: ...

    def delivered(self, policy: PolicyVersion) -> Delivery: ...


class RolloutActor(AnsweringActor):
    """One engine in a process of its own."""

    def __init__(self, make_engine: MakeEngine) -> None:
        super().__init__()
        self._engine = make_engine()

    def pid(self) -> int:
        return os.getpid()

    def version(self) -> int:
        return self._engine.version

    def deliver(self, policy: PolicyVersion) -> Delivery:
        return self._engine.deliver(policy)

    def sample(
        self, version: int, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding
    ) -> list[list[Draw]]:
        self._demand(version)
        return self._engine.sample(prompts, seeds, n, decoding)

    def score(self, version: int, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        self._demand(version)
        return self._engine.score(prompts, answers)

    def close(self) -> None:
        self._engine.close()

    def sleep(self) -> None:
        if isinstance(self._engine, Sleeper):
            self._engine.sleep()

    def wake(self) -> None:
        if isinstance(self._engine, Sleeper):
            self._engine.wake()

    # --- vLLM's weight transfer: called by the trainer's ranks, by the names that vLLM's client uses ----------------

    def expect(self, policy: PolicyVersion) -> None:
        self._receiver.expect(policy)

    def init_weight_transfer_engine(self, request: Any) -> None:
        self._receiver.llm.init_weight_transfer_engine(request)

    def start_weight_update(self) -> None:
        self._receiver.llm.start_weight_update()

    def update_weights(self, request: Any) -> None:
        self._receiver.llm.update_weights(request)

    def finish_weight_update(self) -> None:
        self._receiver.llm.finish_weight_update()

    def delivered(self, policy: PolicyVersion) -> Delivery:
        return self._receiver.delivered(policy)

    @property
    def _receiver(self) -> Receiver:
        if not isinstance(self._engine, Receiver):
            raise RunError(f"engine {self._engine.name} fetches its weights itself and cannot be sent any")
        return self._engine

    def _demand(self, version: int) -> None:
        if self._engine.version != version:
            raise RunError(
                f"engine {self._engine.name} holds version {self._engine.version}, version {version} was asked for"
            )


@dataclass(frozen=True)
class RolloutSettings:
    """Resources of one engine, and how long it is waited for."""

    cpus: float = 1.0
    gpus: float = 0.0
    restarts: int = 3
    """How often it is started again during one call."""
    start_deadline_s: float = 300.0
    deadline_s: float = 600.0
    lack: Callable[[], str | None] = lambda: None
    """Says what the cluster lacks for the run, once it lacks something."""


class RolloutHandle(Handle[RolloutActor]):
    """An engine in another process; satisfies `pddpo_ray.contracts.RolloutEngine`.

    `__init__` only starts the process; `wait_ready` waits for it. `placement` is a placement group and a bundle in it.
    """

    def __init__(
        self,
        name: str,
        make_engine: MakeEngine,
        settings: RolloutSettings | None = None,
        placement: tuple[Any, int] | None = None,
    ) -> None:
        self.name = name
        self._make_engine = make_engine
        self._settings = settings or RolloutSettings()
        self._placement = placement
        self._verify: VerifyDelivery | None = None
        self._send: Send | None = None
        self._asleep = False
        self._policy: PolicyVersion | None = None
        self.restarts = 0
        """How many processes were lost so far."""
        self._answerer = Answerer(
            self._start(),
            f"rollout engine {name}",
            self._settings.restarts,
            self._settings.deadline_s,
            self._settings.start_deadline_s,
            recover=self._replace,
        )

    def verify_with(self, verify: VerifyDelivery) -> None:
        """What a replaced engine has to show before it samples again."""
        self._verify = verify

    def send_with(self, send: Send) -> None:
        """Deliveries are sent by the trainer from now on, instead of being fetched by the engine."""
        self._send = send

    def sleep(self) -> None:
        """The engine gives its GPU's memory away; its next user wakes it."""
        if not self._asleep:
            self._answerer.ask("falling asleep", RolloutActor.sleep)
            self._asleep = True

    def wait_ready(self) -> None:
        """Waits as every handle; an error also says what the cluster has lost."""
        try:
            super().wait_ready()
        except RunError as error:
            shortage = self._settings.lack()
            if shortage is None:
                raise
            raise RunError(f"{error} The cluster became too small: {shortage}") from error

    def pid(self) -> int:
        return self._answerer.ask("its process id", RolloutActor.pid)

    # --- RolloutEngine ------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._answerer.ask("a version check", RolloutActor.version)

    def deliver(self, policy: PolicyVersion) -> Delivery:
        self._policy = None
        self._wake()
        task = f"the delivery of {policy.name}"
        if self._send is None:
            delivery = self._answerer.ask(task, RolloutActor.deliver, policy)
        else:
            self._answerer.ask(task, RolloutActor.expect, policy)
            self._send(policy, self._answerer.actor)
            delivery = self._answerer.ask(task, RolloutActor.delivered, policy)
        self._policy = policy
        return delivery

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding) -> list[list[Draw]]:
        self._wake()
        task = f"sampling {sum(counts(n, len(prompts)))} answer(s)"
        return self._answerer.ask(task, RolloutActor.sample, self._number(), prompts, seeds, n, decoding)

    def score(self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        self._wake()
        task = f"{len(answers)} canary scores"
        scores = self._answerer.ask(task, RolloutActor.score, self._number(), prompts, answers)
        return np.asarray(scores, dtype=np.float64)

    # --- inside -------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._asleep:
            self._answerer.ask("waking up", RolloutActor.wake)
            self._asleep = False

    def _number(self) -> int:
        if self._policy is None:
            raise RunError(f"engine {self.name} holds no policy: deliver a version before sampling from it")
        return self._policy.number

    def _start(self) -> Any:
        options: dict[str, Any] = {"num_cpus": self._settings.cpus, "num_gpus": self._settings.gpus, "max_restarts": 0}
        if self._placement is not None:
            group, bundle = self._placement
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            )
        return ray.remote(RolloutActor).options(**options).remote(self._make_engine)

    def _replace(self) -> None:
        """Starts a new process and delivers the lost one's version, verified: the same seeds give the same answers.

        Processes that are lost meanwhile are replaced in turn.
        """
        self.restarts += 1
        self._answerer.close()
        self._answerer.actor = self._start()
        self._asleep = False
        self.wait_ready()
        policy = self._policy
        if policy is not None:
            delivery = self.deliver(policy)
            if self._verify is not None:
                self._verify(self, delivery, policy)
