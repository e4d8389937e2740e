"""Processes of an endpoint are killed under twelve clients: what they see until it answers again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.killed_processes import CORE, ENTRANCE, GOOD, PROXY, REPLICA, WAIT, killed_under_clients
from tests.support.served_process import Served, served
from tests.support.served_run import PROMPT, SAFE, make_run

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.vllm, pytest.mark.timeout(1200)]

UNREACHED = {"ConnectError", "RemoteProtocolError", "ReadError"}
"""Nobody listens, or the connection breaks."""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    folder = tmp_path_factory.mktemp("killed")
    run = make_run(folder / "demo", (SAFE,))
    try:
        with served(run.folder, folder / "serve.log") as server:
            yield server, (run.folder / "serve-key").read_text().strip()
    finally:
        run.close()


@pytest.mark.parametrize(
    ("name", "allowed"),
    [(CORE, {GOOD, WAIT}), (REPLICA, {GOOD, WAIT}), (ENTRANCE, {GOOD, WAIT}), (PROXY, {GOOD, WAIT} | UNREACHED)],
    ids=["vllm", "engine", "entrance", "proxy"],
)
def test_whatever_is_killed_comes_back_and_nobody_sees_an_error_without_a_time_to_wait(
    endpoint: tuple[Served, str], name: str, allowed: set[str]
) -> None:
    server, key = endpoint
    seen = killed_under_clients(server, key, list(PROMPT.token_ids), name)
    assert set(seen.ends) <= allowed, seen
    assert seen.ends[GOOD]
