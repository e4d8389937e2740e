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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pddpo_ray.loop import run

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

Kill = Callable[[str], None]


@dataclass(frozen=True)
class KillPoint:
    """At the beginning of a phase, before its work."""

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
                self._began[point], self.seconds[point] = time.monotonic(), math.nan
                self._kill(point.victim)
        else:
            for point in [point for point in self._began if (point.round, point.phase) == here]:
                self.seconds[point] = time.monotonic() - self._began.pop(point)

    def _due(self, round_: int, phase: str) -> list[KillPoint]:
        due = [point for point in self.left if (point.round, point.phase) == (round_, phase)]
        self.left = [point for point in self.left if point not in due]
        return due


class EveryKindAtEveryPhase(KillPoints):
    """One kill per phase from round 2 on, until every phase has seen the death of every kind.

    A kind of which nobody lives at that moment, since it was lost before and not yet needed again, is left for a later
    round; phases begin with different kinds, so that a round does not lose the same kind again and again.
    """

    def __init__(self, kinds: Sequence[str], living: Callable[[str], bool], kill: Kill) -> None:
        super().__init__([], kill)
        self._living = living
        self._wanted = {
            phase: [*kinds[first % len(kinds) :], *kinds[: first % len(kinds)]] for first, phase in enumerate(PHASES)
        }

    def missing(self) -> dict[str, list[str]]:
        """Kinds that have not been killed yet, by phase."""
        return {phase: kinds for phase, kinds in self._wanted.items() if kinds}

    def _due(self, round_: int, phase: str) -> list[KillPoint]:
        kinds = self._wanted.get(phase, []) if round_ > 1 else []
        victim = next((kind for kind in kinds if self._living(kind)), None)
        if victim is None:
            return []
        kinds.remove(victim)
        return [KillPoint(round_, phase, victim)]


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


def living(kind: str) -> list[Any]:
    """Living actors of that kind, in the order of their processes."""
    from ray.util.state import list_actors

    actors = list_actors(filters=[("state", "=", "ALIVE")], detail=True)
    return sorted((actor for actor in actors if ACTORS[kind] in actor.class_name), key=lambda actor: actor.pid)
