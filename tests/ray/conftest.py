"""One Ray session for all tests that need one; whatever starts its own, here or in another process, comes later."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack

import pytest

from actors.session import ray_session

SHARED = ExitStack()
"""Holds the session while it runs."""
PLACES = 4
"""CPUs are places, not cores: tests sleep more than they compute."""


@pytest.fixture(scope="module")
def ray_running() -> None:
    """The shared session, with `PLACES` CPUs. A module gives its actors up at its end."""
    import ray

    if not ray.is_initialized():
        SHARED.enter_context(ray_session("pddpo-tests", cpus=PLACES))


def shares(item: pytest.Item | None) -> bool:
    return item is not None and "ray_running" in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on the shared session first, otherwise in their order."""
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(__file__.rpartition("/")[0])]
    ordered = sorted((items[place] for place in places), key=lambda item: not shares(item))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """The session sets variables of the environment that processes started by other tests must not inherit."""
    yield
    if not shares(nextitem):
        SHARED.close()
