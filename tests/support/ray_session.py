"""One Ray session for a test module, with the product's own start and end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ray._private import state

from actors.session import ray_session


@dataclass(frozen=True)
class LivingActor:
    """What Ray knows of an actor; a run's session has no dashboard, which its public state API asks."""

    actor_id: str
    class_name: str
    name: str
    node_id: str
    pid: int


def living_actors(class_name: str = "") -> list[LivingActor]:
    """Actors with this in the name of their class, in the order of their processes."""
    entries = state.actors(actor_state_name="ALIVE").values()
    found = [
        LivingActor(e["ActorID"], e["ActorClassName"], e["Name"], e["Address"]["NodeID"], e["Pid"]) for e in entries
    ]
    return sorted((actor for actor in found if class_name in actor.class_name), key=lambda actor: actor.pid)


def session(cpus: int = 4) -> Iterator[None]:
    """CPUs are places, not cores: tests sleep more than they compute."""
    with ray_session("pddpo-tests", cpus=cpus):
        yield
