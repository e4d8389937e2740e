"""The journal on PostgreSQL: the same run, the same story."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from tests.support.postgres_server import postgres_server
from tests.unit.loop.small_run import finish, small, story

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


def test_a_run_on_postgresql_equals_the_one_on_sqlite(tmp_path: Path, server: str) -> None:
    config = small(f"journal={server}")
    run_recipe(config, tmp_path / "there")
    assert story(tmp_path / "there", url=server) == finish(small(), tmp_path / "here")
    with pytest.raises(UserError, match="holds a run already: continue it with --resume"):
        run_recipe(config, tmp_path / "there")
    run_recipe(config, tmp_path / "there", resume=True)
    with pytest.raises(UserError, match="no run 'elsewhere'"):
        run_recipe(config, tmp_path / "elsewhere", resume=True)


def test_one_driver_at_a_time_on_postgresql(server: str) -> None:
    with (
        Journal.open(server, "locked", create={}),
        pytest.raises(UserError, match="is driven by process"),
    ):
        Journal.open(server, "locked", create={})
    Journal.open(server, "locked", create={}).close()
