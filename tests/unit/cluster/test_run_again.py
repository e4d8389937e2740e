"""A run on Kubernetes begins, parks, and begins again when its labels are in; the API server is played here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy.annotation.app import create_app
from pddpo_lab.simulated_people import Manner, enlist, simulate
from pddpo_ray.annotation.people.accounts import People, Role
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.cli.runs.run_again import LABEL, Jobs, look
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import ParkedError, RunError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from pddpo_ray.worlds.truth_by_text import truth_of
from tests.runs.test_people_run import SETTINGS
from tests.support.annotation_api import GENEROUS
from tests.support.annotation_server import serving
from tests.unit.loop.small_run import run_of

TEMPLATE = {"metadata": {"namespace": "pddpo", "generateName": "first-run-", "labels": {LABEL: "first-run"}}}
PATH = "/apis/ray.io/v1/namespaces/pddpo/rayjobs"


class Api(HTTPServer):
    """RayJobs of one namespace, as an API server lists and creates them."""

    jobs: list[dict[str, Any]]

    def end_job(self, how: str) -> None:
        self.jobs[-1]["status"] = {"jobDeploymentStatus": how}


class Answers(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        assert self.path == f"{PATH}?labelSelector={LABEL}=first-run"
        self._say({"items": self.server.jobs})

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = len(self.server.jobs)
        job["metadata"] |= {"name": f"first-run-{number}", "creationTimestamp": f"2026-01-01T00:00:{number:02}Z"}
        self.server.jobs.append(job)
        self._say(job)

    def _say(self, value: Any) -> None:
        allowed = self.headers["Authorization"] == "Bearer of-the-account"
        self.send_response(200 if allowed else 403)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api(("127.0.0.1", 0), Answers)
    server.jobs = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def jobs_of(api: Api, folder: Path, token: str = "of-the-account") -> Jobs:
    (folder / "token").write_text(token)
    return Jobs(TEMPLATE, f"http://127.0.0.1:{api.server_port}", folder)


@pytest.mark.full
@pytest.mark.slow
def test_a_run_begins_parks_and_begins_again_when_its_labels_are_in(api: Api, tmp_path: Path) -> None:
    folder, jobs = tmp_path / "first", jobs_of(api, tmp_path)
    journal = str(folder / "journal.sqlite")
    assert look(folder, journal, jobs) == "created first-run-0"
    assert look(folder, journal, jobs) == "its job is there (New)"
    parking = load("tabular", [*SETTINGS, "rounds=1", "people.park_after_s=0"])
    with pytest.raises(ParkedError):
        run_recipe(parking, folder)
    api.end_job("Complete")
    assert look(folder, journal, jobs).startswith("waits for people: 1/")
    answer_everything(folder)
    assert look(folder, journal, jobs) == "created first-run-1"
    run_recipe(parking, folder, resume=True)
    api.end_job("Complete")
    assert look(folder, journal, jobs) == "finished"
    assert len(api.jobs) == 2


def answer_everything(folder: Path) -> None:
    engine = open_database(folder / "journal.sqlite")
    store = Store(engine, run_of(folder))
    _, token = People(store).create("admin", Role.ADMIN, by="test")
    with serving(create_app(engine, store.run, Rules(gold_rate=0.0), GENEROUS)) as url:
        accounts = enlist(url, token, 5, "person")
        truth = truth_of(load("tabular", SETTINGS))
        simulate(url, accounts, [Manner(error=0.05)], truth.scores, seed=3, idle_s=1.0)
    engine.dispose()


def test_a_job_that_failed_is_not_repeated(api: Api, tmp_path: Path) -> None:
    jobs = jobs_of(api, tmp_path)
    jobs.create()
    api.end_job("Failed")
    with pytest.raises(RunError, match=r"the last job of .* failed: read its log and delete the RayJob"):
        look(tmp_path / "first", "unused", jobs)
    assert len(api.jobs) == 1


def test_an_account_without_rights_is_one_line(api: Api, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"the API server refuses GET of RayJobs \(403\)"):
        look(tmp_path / "first", "unused", jobs_of(api, tmp_path, "of-somebody"))
