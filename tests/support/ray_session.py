"""One Ray session for a test module, with the product's own start and end."""

from __future__ import annotations

from collections.abc import Iterator

from actors.session import ray_session


def session(cpus: int = 4) -> Iterator[None]:
    """CPUs are places, not cores: tests sleep more than they compute."""
    with ray_session("pddpo-tests", cpus=cpus):
        yield
