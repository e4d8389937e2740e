"""Two runs with a database each behind one server, as `pddpo annotate --run A --run B` serves them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from deploy.annotation.multi_run_app import ServedRun, create_app_of_several
from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.journal.database import open_database
from tests.support.annotation_api import GENEROUS
from tests.support.annotation_queue import FreshQueue, create_run

NAMES = ("first", "second")


@dataclass
class TwoRuns:
    """The server, and the queue of each run by its name."""

    app: FastAPI
    queues: dict[str, FreshQueue]

    def token(self, name: str, handle: str, role: Role = Role.ANNOTATOR, **limits: Any) -> str:
        """A new account of one run alone."""
        return self.queues[name].people.create(handle, role, by="test", **limits)[1]

    def client(self) -> TestClient:
        """A browser without a session."""
        return TestClient(self.app, raise_server_exceptions=False)


@contextmanager
def two_runs(folder: Path, now_ms: int) -> Iterator[TwoRuns]:
    queues = {}
    for name in NAMES:
        engine = open_database(folder / f"{name}.sqlite")
        create_run(engine)
        queues[name] = FreshQueue(engine, now_ms=now_ms)
    runs = [ServedRun(name, queue.engine, "demo", queue.rules) for name, queue in queues.items()]
    yield TwoRuns(create_app_of_several(runs, GENEROUS, lambda: queues["first"].now_ms), queues)
    for queue in queues.values():
        queue.engine.dispose()
