"""Kill points: who is killed with -9 when which phase of which round begins, and what becomes of the run.

points = KillPoints([KillPoint(2, "sample", "rollout engine")])
launch.run_recipe(config, folder, progress=points)
assert points.left == []
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from actors.trainer_group import TrainerGroup
from pddpo_ray.contracts import FitCommand
from pddpo_ray.driver import run
from tests.support.ray_session import LivingActor, living_actors

ACTORS = {
    "rank": "RayTrainWorker",
    "rollout engine": "RolloutActor",
    "train controller": "TrainController",
    "labeller": "FeedbackActor",
    "dual variable": "DualVariableActor",
    "mailbox": "Mailbox",
}
"""Every kind of actor that a run has, with its class."""

PHASES = [
    *("fit-reward", "fit-cost", "publish", "sample", "safety", "dual"),
    *("candidates", "explore", "compare", "preferences", "evaluate"),
]
"""Of a round of O-PD-DPO, in the order of its page; drawing prompts, which no actor has a part in, aside."""

EARLY, DURING_IT = "fit-reward", "safety"
"""A round's reward fit begins in the round before, when this other phase begins. When its own phase begins it may have
ended, so that whoever is killed then loses nothing."""

Kill = Callable[[str], None]


@dataclass(frozen=True)
class KillPoint:
    """At the beginning of a phase, before its work; see `EveryKindAtEveryPhase` for the fit that begins early."""

    round: int
    phase: str
    victim: str


class KillPoints:
    """A run's progress listener that kills; `kill` is given the victim's name."""

    def __init__(self, points: Sequence[KillPoint], kill: Kill | None = None) -> None:
        self.left = list(points)
        self.seconds: dict[KillPoint, float] = {}
        """Of each kill so far, to the end of its phase: what the loss cost. NaN until then."""
        self._kill = kill or kill_actor
        self._began: dict[KillPoint, float] = {}

    def __call__(self, event: run.Event) -> None:
        if not isinstance(event, run.PhaseChanged):
            return
        here = (event.event.round, event.event.phase)
        if event.event.what == "phase-started":
            for point in self._due(*here):
                self._strike(point)
        else:
            for point in [point for point in self._began if (point.round, point.phase) == here]:
                self.seconds[point] = time.monotonic() - self._began.pop(point)

    def _strike(self, point: KillPoint) -> None:
        self._began[point], self.seconds[point] = time.monotonic(), math.nan
        self._kill(point.victim)

    def _due(self, round_: int, phase: str) -> Iterator[KillPoint]:
        due = [point for point in self.left if (point.round, point.phase) == (round_, phase)]
        self.left = [point for point in self.left if point not in due]
        yield from due


class EveryKindAtEveryPhase(KillPoints):
    """One kill per phase from round 2 on, until every phase has seen the death of every kind.

    A kind of which nobody lives at that moment, since it was lost before and not yet needed again, is left for a later
    round; phases begin with different kinds, so that a round does not lose the same kind again and again.

    The reward fit of round k is struck in round k - 1, while it is computed (`holding`): a rank is held before the fit
    is handed out, so that it cannot end, and whoever is to die is killed once that rank has the fit and has computed
    for `work_s` (0: once it is handed out, for fits that take a moment). Seconds count to the end of phase fit-reward.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        living: Callable[[str], bool],
        kill: Kill,
        *,
        rounds: int,
        work_s: float = 0.0,
    ) -> None:
        super().__init__([], kill)
        self._living, self._rounds, self._work_s = living, rounds, work_s
        self._held: Held | None = None
        self.fitting: dict[int, int] = {}
        """{round: process of the rank that was killed while it computed the round's reward fit}"""
        self._wanted = {
            phase: [*kinds[first % len(kinds) :], *kinds[: first % len(kinds)]] for first, phase in enumerate(PHASES)
        }

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Inside the block a rank is held before a trainer group hands out a fit that begins early."""
        begin = TrainerGroup.begin

        def held(group: TrainerGroup, command: FitCommand) -> None:
            if self._wanted.get(EARLY):
                self._held = Held.last_rank()
            begin(group, command)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainerGroup, "begin", held)
            yield

    def missing(self) -> dict[str, list[str]]:
        """Kinds that have not been killed yet, by phase."""
        return {phase: kinds for phase, kinds in self._wanted.items() if kinds}

    def _strike(self, point: KillPoint) -> None:
        if point.phase != EARLY:
            super()._strike(point)
            return
        held, self._held = self._held, None
        if held is None:  # the ranks died with something else: the fit waits for their successors
            super()._strike(point)
            return
        try:
            held.at_work(self._work_s)
            if point.victim == "rank":
                self.fitting[point.round] = held.pid
            super()._strike(point)
        finally:
            held.let_go()

    def _due(self, round_: int, phase: str) -> Iterator[KillPoint]:
        """The second of a phase is chosen when the first is dead, and a node takes others with it."""
        if phase == DURING_IT and round_ < self._rounds:
            yield from self._next(round_ + 1, EARLY)
        if phase != EARLY and round_ > 1:
            yield from self._next(round_, phase)

    def _next(self, round_: int, phase: str) -> list[KillPoint]:
        kinds = self._wanted.get(phase, [])
        victim = next((kind for kind in kinds if self._living(kind)), None)
        if victim is None:
            return []
        kinds.remove(victim)
        return [KillPoint(round_, phase, victim)]


class Held:
    """A rank that does not go on until it is let go."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)
        self._process.suspend()

    @staticmethod
    def last_rank() -> Held | None:
        """The one that `kill_actor` takes; None where none lives."""
        with suppress(IndexError, psutil.NoSuchProcess):
            return Held(living("rank")[-1].pid)
        return None

    def at_work(self, work_s: float) -> None:
        """Returns when the rank has a command that it has not answered, and has computed for `work_s` since."""
        deadline = time.monotonic() + 60
        while not self._has_command():
            assert time.monotonic() < deadline, f"rank {self.pid} was given nothing to do"
            time.sleep(0.01)
        if work_s:
            before = self._cpu_s()
            self._process.resume()
            while self._cpu_s() < before + work_s:
                assert time.monotonic() < deadline, f"rank {self.pid} does not compute"
                time.sleep(0.01)
            self._process.suspend()
            assert self._has_command(), f"rank {self.pid} was done before it had computed for {work_s} s"

    def let_go(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self._process.resume()

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _has_command(self) -> bool:
        import ray

        for actor in living("mailbox"):
            mailbox = ray.get_actor(actor.name)
            ranks = [worker.rank for worker in ray.get(mailbox.workers.remote()) if worker.pid == self.pid]
            if ranks and ranks[0] in ray.get(mailbox.waiting_for.remote()):
                return True
        return False


def record(recipe: str, seconds: Mapping[KillPoint, float], outcome: str) -> None:
    """Append a line per point to `$PDDPO_KILL_POINTS`, from which the table in the documentation is made."""
    place = os.environ.get("PDDPO_KILL_POINTS")
    if place:
        with Path(place).open("a", encoding="utf-8") as file:
            for point, spent in seconds.items():
                file.write(
                    json.dumps([recipe, point.round, point.phase, point.victim, outcome, round(spent, 1)]) + "\n"
                )


def kill_actor(kind: str) -> None:
    """kill -9 of one living actor of that kind; returns when Ray has noticed."""
    victims = living(kind)
    assert victims, f"no {kind} is alive"
    victim = victims[-1]
    os.kill(victim.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while any(actor.pid == victim.pid for actor in living(kind)):
        assert time.monotonic() < deadline, f"Ray did not notice the death of the {kind} within a minute"
        time.sleep(0.1)


def living(kind: str) -> list[LivingActor]:
    """Living actors of that kind, in the order of their processes."""
    return living_actors(ACTORS[kind])
