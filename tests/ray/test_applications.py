"""Endpoints of several runs on one cluster: their names in Serve, and a route that is taken.

The session is this file's own: Serve is started in it at a port of the test, once in a session.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.session import ray_session
from pddpo_ray.errors import UserError
from tests.support.ports import free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.full]


def says(word: str) -> Any:
    """A small application."""
    from ray import serve

    class Says:
        def __call__(self) -> str:
            return word

    return serve.deployment(Says).bind()


def test_runs_of_one_name_stand_beside_each_other_and_a_taken_route_is_one_line(tmp_path: Path) -> None:
    from ray import serve

    from deploy.serving.deployment import application_name, deployed

    first, second = (application_name(tmp_path / owner / "demo", shared=True) for owner in ("ana", "ben"))
    assert application_name(tmp_path / "ana" / "demo", shared=True) == first != second
    with ray_session("applications"):
        serve.start(http_options={"host": "127.0.0.1", "port": free_port()})
        try:
            one = deployed(says("one"), first, "/")
            with pytest.raises(UserError, match=f"--route /: the application {first} .* answers there") as refused:
                deployed(says("two"), second, "/")
            assert "\n" not in str(refused.value)
            serve.delete(second)  # as an endpoint that did not start does
            two = deployed(says("two"), second, "/ben")
            again = deployed(says("three"), first, "/")
            assert [two.remote().result(), again.remote().result(), one.remote().result()] == ["two", "three", "three"]
        finally:
            serve.shutdown()
